# shellcheck shell=bash
# The suites of ci/test and ci/nightly, which source this in the top folder: each is a function that runs
# and records what it is named after. Logs, JUnit files and what was recorded: build/test, build/nightly.

readonly logs=$PWD/build/${0##*/}
readonly suites=$logs/suites.tsv
readonly python=.venv/bin/python
jobs=$(nproc)
readonly jobs
# Builds in several folders share what they compile alike (build_backend).
export CCACHE_BASEDIR=$PWD
# Memory that tests free is used again rather than given back to the system and cleared: a third of what
# replays take (harness/cli/main.cpp does the same).
export MALLOC_MMAP_THRESHOLD_=$((32 << 20)) MALLOC_TRIM_THRESHOLD_=$((512 << 20)) MALLOC_TOP_PAD_=$((64 << 20))

# record NAME EXIT_CODE JUNIT REASON [SECONDS USER_SECONDS SYSTEM_SECONDS]: see ci/tally.py.
record() {
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "${@:1:4}" "${5:-0}" "${6:-0}" "${7:-0}" >>"$suites"
}

# suite NAME JUNIT COMMAND...: runs one suite and records it. JUNIT: the file it writes, or "-".
suite() {
  local name=$1 junit=$2 status=0 times
  shift 2
  [[ $junit == - ]] || rm -f "$junit"
  printf '\n== %s\n' "$name"
  local TIMEFORMAT='%R %U %S'
  { time "$@" 2>&1 | tee "$logs/$name.log"; } 2>"$logs/$name.time" || status=$?
  read -ra times <"$logs/$name.time"
  printf '== %s: exit code %d, %s s\n' "$name" "$status" "${times[0]}"
  record "$name" "$status" "$junit" "" "${times[@]}"
  return "$status"
}

# side_by_side FUNCTION...: runs them at once, one more than there are cores: most of the suites use one core
# only, and the longest often waits for a timeout. The first, the longest, has a core whenever it asks for one:
# beside compilers it had a fifth, and ran alone at the end. What each prints comes when it has ended; its log
# grows meanwhile.
side_by_side() {
  local task
  for task in "$@"; do
    while (($(jobs -rp | wc -l) > jobs)); do wait -n || true; done
    {
      [[ $task == "$1" ]] || renice -n 10 "$BASHPID" >/dev/null
      printf '%s\n' "$("$task" 2>&1)"
    } &
  done
  wait
}

has_device() { build/cpu/bin/harness devices 2>/dev/null | grep -E "^$1 +usable" >/dev/null; }

configure_and_build() {
  cmake --preset "$@" && cmake --build --preset "$1"
}

# A warning is an error. Not by a flag: ci/verify builds without it, for compilers of all ages, and all
# would be compiled twice.
no_warnings() { ! grep -E '^[^ ]+:[0-9]+:[0-9]+: warning: ' "$logs/build-$1.log"; }

# ctest without a line for each test that passes. Other suites run at the same time.
run_ctest() {
  local preset=$1 junit=$2
  shift 2
  ctest --preset "$preset" "$@" -j "$(((jobs + 1) / 2))" --output-junit "$junit" | grep -vE '^ *(Start +[0-9]+:|.* Passed +[0-9.]+ sec)'
}

# build_cpp PRESET [OPTIONS OF CMAKE...]
build_cpp() {
  suite "build-$1" - configure_and_build "$@" || touch "$logs/unbuilt-$1"
  suite "warnings-$1" - no_warnings "$1" || true
}

# test_cpp NAME PRESET ARGUMENTS...: some tests of a preset.
test_cpp() {
  local name=$1 preset=$2 junit=$logs/$1.xml
  shift 2
  if [[ -e $logs/unbuilt-$preset ]]; then
    record "$name" "" - "the build failed"
  else
    suite "$name" "$junit" run_ctest "$preset" "$junit" "$@" || true
  fi
}
# Without what check_implementations runs, and what is left to the night.
readonly faults='parameter faults are killed on .*, composed|parameter faults are killed on emu|killed in the oracle device|of elementwise ops like others'
readonly checked='emu-check: '
test_release() { test_cpp ctest-cpu cpu -E "every implementation of cpu runs|$faults|$checked"; }
test_faults() { test_cpp ctest-faults cpu -R "$faults"; }
test_checked() { test_cpp ctest-checked cpu -R "$checked"; }
test_sanitized() { test_cpp ctest-asan asan; }

# Every op on calls made from its row, on both kinds of device.
verify_ops() {
  local devices=cpu junit=$logs/verify-ops.xml
  ! has_device emu:64 || devices+=,emu:32,emu:64
  suite verify-ops "$junit" build/cpu/bin/harness --suite ops --device "$devices" --junit "$junit" || true
}
verify_ops_composed() {
  local devices=cpu junit=$logs/verify-ops-composed.xml
  ! has_device emu:64 || devices+=,emu:32,emu:64
  suite verify-ops-composed "$junit" \
    build/cpu/bin/harness --suite ops --no-fuse --device "$devices" --junit "$junit" || true
}

# All recordings on the emulated GPU, at the wave width of AMD, and at night of NVIDIA; fused and composed.
verify_emu() {
  local junit=$logs/verify-emu.xml results=$logs/emu-64.jsonl
  has_device emu:64 || return 0
  suite verify-emu "$junit" build/cpu/bin/harness --device emu:64 --repeat 1 --junit "$junit" \
    --json "$results" || true
  suite accuracy-emu - "$python" -m reports history compare reports/baselines/emu-64.jsonl.xz "$results" || true
}
verify_emu_32() {
  local junit=$logs/verify-emu-32.xml
  has_device emu:32 || return 0
  suite verify-emu-32 "$junit" build/cpu/bin/harness --device emu:32 --repeat 1 --junit "$junit" || true
}
verify_emu_composed() {
  local junit=$logs/verify-emu-composed.xml
  has_device emu:32 || return 0
  suite verify-emu-composed "$junit" \
    build/cpu/bin/harness --device emu:32,emu:64 --no-fuse --repeat 1 --junit "$junit" || true
}

# All recordings on OpenCL, and at night every op there and, with every race a fault, of the same kernels
# on the emulated GPU. The driver keeps what it has built in a folder of this run.
verify_opencl() {
  local junit=$logs/verify-opencl.xml
  has_device opencl:0 || return 0
  mkdir -p "$logs/pocl"
  suite verify-opencl "$junit" env POCL_CACHE_DIR="$logs/pocl" \
    build/cpu/bin/harness --device opencl:0 --repeat 1 --junit "$junit" || true
}
verify_portable_ops() {
  local devices=emu-portable junit=$logs/verify-portable-ops.xml
  has_device emu-portable || return 0
  ! has_device opencl:0 || devices+=,opencl:0
  mkdir -p "$logs/pocl-ops"
  suite verify-portable-ops "$junit" env POCL_CACHE_DIR="$logs/pocl-ops" \
    build/cpu/bin/harness --suite ops --device "$devices" --junit "$junit" || true
}

# The recordings of a model of each kind on Vulkan, half of all checkpoints; at night all, and every op.
verify_vulkan() {
  local junit=$logs/verify-vulkan.xml
  has_device vulkan:0 || return 0
  suite verify-vulkan "$junit" build/cpu/bin/harness --device vulkan:0 --repeat 1 --fixture fixtures/blocks \
    --fixture fixtures/gemma2-a4 --fixture fixtures/zamba2-a6 --fixture fixtures/zamba2-a7 \
    --fixture fixtures/zamba2-a8 --junit "$junit" || true
}
verify_vulkan_all() {
  local junit=$logs/verify-vulkan-all.xml
  has_device vulkan:0 || return 0
  suite verify-vulkan-all "$junit" build/cpu/bin/harness --device vulkan:0 --repeat 1 --junit "$junit" || true
}
verify_vulkan_ops() {
  local junit=$logs/verify-vulkan-ops.xml
  has_device vulkan:0 || return 0
  suite verify-vulkan-ops "$junit" \
    build/cpu/bin/harness --suite ops --device vulkan:0 --junit "$junit" || true
}

# The same with the exact bounds of every operand, with every race a fault.
verify_emu_check() {
  local junit=$logs/verify-emu-check.xml
  has_device emu-check:64 || return 0
  suite verify-emu-check "$junit" \
    build/cpu/bin/harness --device emu-check:64 --repeat 1 --junit "$junit" || true
}

# Nothing is less accurate than what was accepted. AVX2 for all, since other instruction sets round other sums.
accuracy() {
  local results=$logs/cpu.jsonl
  PLUMB_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 build/cpu/bin/harness --device cpu --repeat 1 --json "$results" &&
    "$python" -m reports history compare reports/baselines/cpu.jsonl.xz "$results"
}
check_accuracy() {
  if grep -qw avx2 /proc/cpuinfo; then
    suite accuracy - accuracy || true
  else
    record accuracy "" - "the baseline is of AVX2, which this CPU lacks"
  fi
}

# Whole models from their ids, on both kinds of device.
verify_chains() {
  local devices=cpu junit=$logs/verify-chained.xml
  ! has_device emu:64 || devices+=,emu:64
  suite verify-chained "$junit" build/cpu/bin/harness --mode chained --device "$devices" --junit "$junit" || true
}

# All recordings on every device of this machine, as a user does it; then what that found as a page, and
# as Markdown for the summary of a CI run; next to the baseline where the CPU's own instruction set is
# the baseline's.
verify_and_report() {
  local baseline=()
  suite verify build/verify/junit.xml ci/verify || true
  ! build/cpu/bin/harness devices | grep -E '^cpu .*\<avx2,' >/dev/null || baseline=(--baseline reports/baselines/cpu.jsonl.xz)
  suite report - "$python" -m reports render build/verify/results.jsonl "${baseline[@]}" \
    --html "$logs/report.html" --markdown "$logs/report.md" || true
}

# Every compiled implementation is run by a recording. The emulated GPU has the same ones at both widths.
check_implementations() {
  suite implementations - build/cpu/bin/harness support --impl --device cpu || true
}
check_implementations_emu() {
  has_device emu:64 || return 0
  suite implementations-emu - build/cpu/bin/harness support --impl --device emu:64 || true
}

# All recordings once more, under the sanitizers; on the emulated GPU, which is slow there, and chained
# one model's.
verify_asan() {
  local junit=$logs/verify-asan.xml
  suite verify-asan "$junit" build/asan/bin/harness --device cpu --repeat 1 --junit "$junit" || true
}
verify_asan_ops() {
  local junit=$logs/verify-asan-ops.xml
  suite verify-asan-ops "$junit" build/asan/bin/harness --suite ops --device cpu --junit "$junit" || true
}
verify_asan_emu() {
  local junit=$logs/verify-asan-emu.xml
  has_device emu:64 || return 0
  suite verify-asan-emu "$junit" build/asan/bin/harness --device emu:64 --repeat 1 \
    --fixture fixtures/gemma2-a4 --junit "$junit" || true
}

verify_asan_chains() {
  local junit=$logs/verify-asan-chained.xml
  suite verify-asan-chained "$junit" build/asan/bin/harness --mode chained --device cpu \
    --fixture fixtures/gemma2-a4 --junit "$junit" || true
}

# The longest suite, in halves that run side by side.
test_python_1() { run_pytest pytest-a-o tests/python/test_[a-o]*.py; }
test_python_2() { run_pytest pytest-p-z tests/python/test_[p-z]*.py; }

# What ci/test runs one of its kind of.
test_python_at_night() { run_pytest pytest-at-night -m nightly; }

# run_pytest NAME ARGUMENTS...
run_pytest() {
  local name=$1 junit=$logs/$1.xml
  shift
  # One thread: tiny operations, and the other core has work of its own.
  OMP_NUM_THREADS=1 PATH="$PWD/build/cpu/bin:$PATH" suite "$name" "$junit" \
    "$python" -m pytest --junit-xml "$junit" "$@" || true
}

# A wheel for older systems, by another compiler; then in a fresh environment here.
build_wheel() { suite wheel - ci/wheel --manylinux || true; }

# All kernels that are known to be right or wrong, of which pytest judges a part.
judge_corpus() {
  OMP_NUM_THREADS=1 PATH="$PWD/build/cpu/bin:$PATH" suite corpus - \
    "$python" -m tests.corpus --against reports/corpus.jsonl.xz || true
}

# One recording with the transformers that pip resolves to today, whatever is pinned here.
record_with_newest() {
  if "$python" -m pip index versions --retries 1 --timeout 20 transformers >/dev/null 2>&1; then
    suite newest - ci/versions --newest || true
  else
    record newest "" - "PyPI cannot be reached for the newest transformers"
  fi
}

# The outputs that README.md shows are what the commands print today.
check_readme() { suite readme - ci/readme --check || true; }

lint() {
  local name
  for name in $(ci/lint --list); do
    suite "$name" - ci/lint "$name" || true
  done
}

# What needs a GPU to run compiles and links where its compiler is, unoptimised and, where it is not for one
# GPU alone, without an assembler; ci/device.sh builds and runs what people run.
build_cuda() {
  local fast=()
  if command -v nvcc >/dev/null; then
    ! nvcc --help | grep -e --Ofast-compile >/dev/null || fast=(-DCMAKE_CUDA_FLAGS=-Ofc=max)  # CUDA 12.8
    suite build-cuda - build_backend cuda -DCMAKE_CUDA_ARCHITECTURES=90-virtual -DCMAKE_CUDA_FLAGS_RELEASE= "${fast[@]}" || true
  else
    record build-cuda "" - "no nvcc on PATH"
  fi
}
build_hip() {
  if command -v hipcc >/dev/null; then
    suite build-hip - build_backend hip -DCMAKE_BUILD_TYPE=Debug || true
  else
    record build-hip "" - "no hipcc on PATH"
  fi
}

# Configures a preset with further options, compiles its kernels and links them; the program must know the
# device then. Code above kernels/ is the same in build-cpu, and so are C++ files of kernels/, which ccache has.
# In a folder of its own, so that no other build becomes unoptimised.
build_backend() {
  local preset=$1 folder=build/test-$1
  shift
  cmake --preset "$preset" -B "$folder" -DPLUMB_EMU=OFF "$@" &&
    cmake --build "$folder" --target list_devices &&
    "$folder/bin/list_devices" | tee "$logs/devices-$preset.txt" &&
    ! grep -q "^$preset .*this build has no" "$logs/devices-$preset.txt"
}

# Devices that this machine or this build lacks are named in the summary.
record_absent_devices() {
  local device reason
  [[ -x build/cpu/bin/harness ]] || return 0
  while IFS=$'\t' read -r device reason; do
    record "$device" "" - "$reason"
  done < <(build/cpu/bin/harness devices | sed -nE 's/^([^ ]+) +not usable +/\1\t/p')
}

# What a change need not wait for, longest first.
readonly at_night=(test_sanitized verify_asan_emu verify_asan verify_asan_chains verify_emu_check
  verify_vulkan_ops verify_vulkan_all verify_emu_32 verify_emu_composed verify_portable_ops check_implementations_emu
  test_faults test_checked verify_ops_composed verify_asan_ops
  judge_corpus test_python_at_night build_wheel build_hip)

# What all suites need is installed; Python's packages, minutes for torch alone, while C++ is built.
begin() {
  ci/setup --packages
  ci/setup --all &
  setup=$!
  mkdir -p "$logs"
  : >"$suites"
  rm -f "$logs"/unbuilt-*
}

await_setup() {
  wait "$setup" || { echo "${0##*/}: ci/setup --all failed, its message is above" >&2 && exit 1; }
}
