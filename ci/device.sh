#!/usr/bin/env bash
# Builds for the GPU of this machine, verifies every kernel on it and measures it.
#
# usage: ci/device.sh [--device cuda:N] [--out DIR] [--rival-timeout S] [STEP...]
#   --device cuda:N     which GPU (default: cuda:0); results name it
#   --out DIR           where results, environment and summary go (default: build/device)
#   --rival-timeout S   how long one model, alternating with transformers, may take (default: 240); what
#                       is not done by then is a gap with this reason
#   STEP                build verify tests python bench models sanitize layers full panel coverage; default:
#                       all, in this order
#
# verify    every recording on it, fused and composed, alone and in the chain, and in every dtype
# tests     op tests, attention at the borders of its tiles, more than 2^31 elements, counters, errors
# python    check(), verify_module(), capture() and recordings of tensors on it, kernels in Triton, the corpus
# sanitize  compute-sanitizer's four tools over one small case of each kernel
# layers    one layer each of Llama-3-8B (4096 tokens) and Gemma-2-2B (4200), recorded here by transformers
# full      whole models at their real size, recorded and verified (ci/full_size)
# panel     random models recorded on it: what breaks there, and false alarms (ci/panel)
# bench     harness bench next to PyTorch; python3 must have torch and transformers for it and layers
# models    prefill and decode of whole models with random weights, alternating with transformers, eager and compiled
# coverage  which compiled implementations no recording reaches
#
# A step that fails does not stop the others. DIR/summary.md says what each found; the last line counts.
set -uo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit
fi
device=cuda:0
out=build/device
rival_timeout=240
while [[ ${1:-} == --* ]]; do
  [[ $# -ge 2 ]] || { echo "device.sh: $1 needs a value" >&2 && exit 2; }
  case $1 in
    --device) device=$2 ;;
    --out) out=$2 ;;
    --rival-timeout) rival_timeout=$2 ;;
    *) echo "device.sh: unknown option $1; see --help" >&2 && exit 2 ;;
  esac
  shift 2
done
[[ $device =~ ^cuda:[0-9]+$ ]] ||
  { echo "device.sh: --device $device: expected cuda:N, such as cuda:0" >&2 && exit 2; }
IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-}"
readonly device out rival_timeout preset=cuda
readonly gpu=${visible[${device#cuda:}]:-${device#cuda:}}  # as the driver calls it
readonly on_gpu=(env "CUDA_VISIBLE_DEVICES=$gpu")  # for programs that take the first they see
readonly bin=build/$preset/bin
readonly summary=$out/summary.md
readonly known=(build verify tests python bench models sanitize layers full panel coverage)
readonly shapes=(llama3-8b gemma2-2b) models=(llama3-8b gemma2-2b zamba2-1.2b)
readonly python_tests=(check products triton draw hard shrinking any_call verify_module module_verdicts foreign_kernels
  looser quantisers quantised_formats quantised_caches decompositions record_quantised
  check_backward backward_kernels backward_judged backward_open record_backward sealed_backward
  check_results check_arguments check_gradients inside reads open_choices keyless_rows contracts_inside
  quantised_choices explained failure_words ill_conditioned small_parts invariant batch_variance made_recordings
  check_tensors prepared large_calls problem_cache strategies flow sequential torch_alone
  sealed sealed_times sealed_sanitized adversaries bounds kernelbench backendbench flashinfer_bench gpu_mode)
declare -rA layer_tokens=([llama3-8b]=4096 [gemma2-2b]=4200)  # beyond its window of 4096
passed=0
failed=0
skipped=0

# check NAME COMMAND...: runs it with its output in DIR/NAME.log; one line of the summary.
check() {
  local name=$1 status=0 start=$SECONDS
  shift
  "$@" >"$out/$name.log" 2>&1 || status=$?
  if [[ $status -eq 0 ]]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    tail -n 15 "$out/$name.log"
  fi
  # shellcheck disable=SC2016  # the backticks are Markdown's
  printf -- '- %s: exit code %d, %d s: `%s`\n' "$name" "$status" "$((SECONDS - start))" \
    "$(grep -v '^ *$' "$out/$name.log" | tail -n 1 | cut -c 1-160)" | tee -a "$summary"
  return "$status"
}

skip() {
  skipped=$((skipped + 1))
  printf -- '- %s: skipped: %s\n' "$1" "$2" | tee -a "$summary"
}

has_python() { python3 -c 'import torch, transformers, safetensors; assert torch.cuda.is_available()' 2>/dev/null; }

# The folder of cublasLt.h that a Python package brought, if CMake would not find it.
cublaslt_option() {
  python3 -c 'import nvidia, pathlib
for root in nvidia.__path__:
    for header in pathlib.Path(root).glob("*/include/cublasLt.h"):
        print(f"-DPLUMB_CUBLASLT_INCLUDE_DIR={header.parent}")
        raise SystemExit' 2>/dev/null
}

step_build() {
  # shellcheck disable=SC2046  # no option or one
  check configure cmake --preset "$preset" -DPLUMB_EMU=OFF $(cublaslt_option) &&
    check build cmake --build --preset "$preset"
}

verify() { "$bin/harness" --device "$device" "$@"; }

step_verify() {
  check devices "$bin/harness" devices
  check verify-fused verify --mode both --repeat 3 --json "$out/fused.jsonl"
  check verify-composed verify --mode both --no-fuse --json "$out/composed.jsonl"
  check verify-ops verify --suite ops
  check verify-ops-composed verify --suite ops --no-fuse
  check formulas "$bin/harness" support --ops --device "$device"
  local dtype
  for dtype in f32 f16 bf16; do
    check "verify-$dtype" verify --dtype "$dtype"
    check "verify-$dtype-composed" verify --dtype "$dtype" --no-fuse
  done
  rm -f "$out/baseline.jsonl"
  check baseline python3 -m reports baseline "$out"/{fused,composed}.jsonl \
    --out "$out/baseline.jsonl"
}

step_coverage() { check coverage "$bin/harness" support --impl --device "$device"; }

step_tests() {
  check kernels_test env PLUMB_TEST_DEVICES="$device" "$bin/kernels_test" '~*cpu*'
  check cuda_test "${on_gpu[@]}" "$bin/cuda_test"
  check gpu_test "${on_gpu[@]}" "$bin/gpu_test"
}

# Whether nothing failed: a recording this short cannot show every feature (exit code 8).
passes() {
  local status=0
  "$@" || status=$?
  ((status == 0 || status == 8))
}

# The tests of what judges tensors where they are; what they make is on the GPU (tests/python/on_device.py).
step_python() {
  has_python || { skip python "python3 has no torch with CUDA, transformers and safetensors" && return; }
  # shellcheck disable=SC2046  # a file each
  check python "${on_gpu[@]}" PLUMB_TEST_DEVICE=cuda:0 "PATH=$PWD/$bin:$PATH" python3 -m pytest -m "not host" \
    $(printf 'tests/python/test_%s.py ' "${python_tests[@]}")
  check corpus "${on_gpu[@]}" "PATH=$PWD/$bin:$PATH" python3 -m tests.corpus --device cuda:0 --jobs 4 \
    --against reports/corpus.jsonl.xz --out "$out/corpus.jsonl.xz"
  local type types
  types=$(python3 -c 'from python_inspector.described import MODEL_TYPES; print(*MODEL_TYPES)')
  for type in $types; do
    rm -rf "build/device-record/$type"
    check "record-tiny-$type" python3 -m python_inspector record --model "tiny:$type" --dtype bf16 --tokens 11 \
      --steps 3 --chained --device "$device" --out "build/device-record/$type" &&
      check "verify-tiny-$type" passes "$bin/harness" --mode both --device cpu --fixture "build/device-record/$type"
  done
}

step_sanitize() {
  local tool
  # Copies to the host are left out: initcheck does not see what cuBLASLt's kernels store by TMA.
  local sanitizer=("${on_gpu[@]}" compute-sanitizer --error-exitcode 1 --check-api-memory-access no)
  if ! command -v compute-sanitizer >/dev/null; then
    skip sanitize "no compute-sanitizer on PATH"
    return
  fi
  for tool in memcheck racecheck initcheck synccheck; do
    check "$tool" "${sanitizer[@]}" --tool "$tool" \
      "$bin/gpu_test" 'gpu: every implementation once\, small'
    check "$tool-attention" "${sanitizer[@]}" --tool "$tool" \
      "$bin/cuda_test" 'cuda: attention\, one small case of each kernel'
  done
}

step_layers() {
  local shape
  has_python || { skip layers "python3 has no torch with CUDA, transformers and safetensors" && return; }
  for shape in "${shapes[@]}"; do
    check "record-$shape" python3 -m python_inspector layer --shape "$shape" \
      --tokens "${layer_tokens[$shape]}" --dtype bf16 --device "$device" --out "build/device-layers/$shape" &&
      check "layer-$shape" verify --fixture "build/device-layers/$shape" --json "$out/layer-$shape.jsonl"
  done
}

step_full() {
  has_python || { skip full "python3 has no torch with CUDA, transformers and safetensors" && return; }
  check full ci/full_size --device "$device" --harness "$bin/harness" --only '^((?!on the host).)*$' \
    --out "$out/full.txt"
}

step_panel() {
  has_python || { skip panel "python3 has no torch with CUDA, transformers and safetensors" && return; }
  check panel env PLUMB_PYTHON="$(command -v python3)" ci/panel --record-on "$device" --device "$device" \
    --device cpu --count 40 --harness "$bin/harness" --keep "$out/panel" --json "$out/panel.json"
}

step_bench() {
  local shape
  rm -f "$out"/{bench,decode,rivals}-*.jsonl
  for shape in "${shapes[@]}"; do
    check "bench-$shape" "$bin/harness" bench --device "$device" --shape "$shape" --tokens 4096 \
      --json "$out/bench-$shape.jsonl"
    check "bench-decode-$shape" "$bin/harness" bench --device "$device" --shape "$shape" --block sdpa \
      --tokens 1 --context 32768 --json "$out/decode-$shape.jsonl"
    if has_python; then
      check "rivals-$shape" python3 -m reports rivals --quick --shape "$shape" --tokens 4096 \
        --device "$device" --out "$out/rivals-$shape.jsonl"
      check "rivals-decode-$shape" python3 -m reports rivals --quick --shape "$shape" --block sdpa \
        --tokens 1 --context 32768 --device "$device" --out "$out/rivals-decode-$shape.jsonl"
    else
      skip "rivals-$shape" "python3 has no torch with CUDA"
    fi
  done
  check speed python3 -m reports table "$out"/{bench,decode,rivals}-*.jsonl
  mv "$out/speed.log" "$out/speed.md"
}

step_models() {
  local shape files
  rm -f "$out"/*model-*.jsonl "$out/models.jsonl"
  for shape in "${models[@]}"; do
    check "model-$shape" "$bin/harness" bench --model random --shape "$shape" --device "$device" \
      --tokens 4096 --json "$out/model-$shape.jsonl"
    if has_python; then
      check "rival-model-$shape" python3 -m reports model --shape "$shape" --tokens 4096 --steps 16 \
        --rounds 1 --harness "$bin/harness" --device "$device" --compiled \
        --timeout "$rival_timeout" --out "$out/rival-model-$shape.jsonl"
    else
      skip "rival-model-$shape" "python3 has no torch with CUDA"
    fi
  done
  files=("$out"/*model-*.jsonl)
  [[ ${#files[@]} -eq 0 ]] && return
  cat "${files[@]}" >"$out/models.jsonl"
  check models python3 -m reports table "$out/models.jsonl"
  mv "$out/models.log" "$out/models.md"
}

environment() {
  nvidia-smi -i "$gpu" --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null ||
    echo "no GPU that nvidia-smi knows"
  nvcc --version | tail -n 2
  cmake --version | head -n 1
  "${CXX:-c++}" --version | head -n 1
  python3 -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'
  git rev-parse HEAD 2>/dev/null || echo "no git"
}

[[ $# -gt 0 ]] || set -- "${known[@]}"
for step in "$@"; do
  [[ " ${known[*]} " == *" $step "* ]] ||
    { echo "device.sh: unknown step \"$step\"; known: ${known[*]}" >&2 && exit 2; }
done
[[ $rival_timeout =~ ^[0-9]+$ ]] ||
  { echo "device.sh: --rival-timeout $rival_timeout: expected whole seconds" >&2 && exit 2; }
if [[ -z $out ]] || ! mkdir -p "$out"; then
  echo "device.sh: --out \"$out\": cannot be made a folder" >&2
  exit 2
fi
environment >"$out/environment.txt" 2>&1
printf '# %s\n\n' "$(head -n 1 "$out/environment.txt")" >"$summary"
for step in "$@"; do
  if [[ $step != build && ! -x $bin/harness ]]; then
    skip "$step" "there is no $bin/harness: run the step build first"
    failed=$((failed + 1))
    break
  fi
  if [[ $step != build ]] && ! "$bin/harness" devices | grep -E "^$device +usable" >/dev/null; then
    skip "$step" "$device is not usable: $("$bin/harness" devices | grep ^cuda | tr -s ' ' | paste -sd ';')"
    failed=$((failed + 1))
    break
  fi
  if ! "step_$step" && [[ $step == build ]]; then
    break  # what is there was built from something else
  fi
done
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped" | tee -a "$summary"
[[ $failed -eq 0 && $passed -gt 0 ]]
