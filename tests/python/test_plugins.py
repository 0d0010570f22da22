"""A user's own kernels: built from the header alone, judged by the harness."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness_runs import CHECKED, PLUGIN_SAMPLES, ROOT, Run, command, need_device, verify

REPLACED = "rms_norm/plugin:my_norm"


def judge(plugin: Path, tmp_path: Path, *options: str) -> Run:
    return verify(tmp_path, "--plugin", str(plugin), *options)


NORMS = ("--device", "cpu", "--block", "rms_norm", "--dtype", "f32")


@pytest.mark.parametrize("built", ["right", "version_1"])
def test_a_right_kernel_passes_all_recordings(built: str, plugins: Path, tmp_path: Path) -> None:
    run = judge(plugins / f"rms_norm_{built}.so", tmp_path, *NORMS)
    assert run.code == 0, run.stdout + run.stderr
    assert len(run.results) > 100
    assert {result["status"] for result in run.results} == {"pass"}
    assert all(result["impl"] == [REPLACED] for result in run.results)


def test_a_wrong_kernel_fails(plugins: Path, tmp_path: Path) -> None:
    run = judge(plugins / "rms_norm_wrong.so", tmp_path, *NORMS)
    assert run.code == 1
    assert any(result["status"] == "fail" for result in run.results)
    assert f"ran: {REPLACED}" in run.stdout
    assert f"--plugin {shlex.quote(str(plugins / 'rms_norm_wrong.so'))}" in run.stdout


def test_shards_of_one_plugin_are_merged(plugins: Path, tmp_path: Path) -> None:
    right, wrong = (plugins / f"rms_norm_{name}.so" for name in ("right", "wrong"))
    files = []
    for index, plugin in enumerate((right, right, wrong), 1):
        folder = tmp_path / str(index)
        folder.mkdir()
        files.append(folder / "results.jsonl")
        judge(plugin, folder, *NORMS, "--shard", f"{min(index, 2)}/2")
    one, two, other = files

    def merge(*parts: Path) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "reports", "merge", *map(str, parts)]
        words += ["--out", str(tmp_path / "all.jsonl")]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)

    assert merge(one, two).returncode == 0
    assert f" --plugin {right} " in (tmp_path / "all.jsonl").read_text().partition("\n")[0]
    assert f"--plugin is {right} in {one} and {wrong} in {other}" in merge(one, other).stderr


def test_the_kernel_of_plugin_md(tmp_path: Path) -> None:
    section = (ROOT / "kernels/plugin.md").read_text()
    source = re.search(r"```c\n(.*?)```", section, re.DOTALL)
    commands = re.search(r"```\n(cc .*?)\n(harness .*?)\n```", section)
    assert source and commands
    (tmp_path / "my_norm.c").write_text(source[1])
    compile_it = commands[1].replace("-I .", f"-I {ROOT}")
    subprocess.run(["bash", "-c", compile_it], cwd=tmp_path, check=True)
    options = commands[2].split()[3:]
    run = judge(tmp_path / "my_norm.so", tmp_path, *options)
    assert run.code == 0, run.stdout + run.stderr
    assert all(result["impl"] == [REPLACED] for result in run.results)


def test_impl_chooses_between_the_plugin_and_the_device(plugins: Path, tmp_path: Path) -> None:
    wrong = plugins / "rms_norm_wrong.so"
    own = judge(wrong, tmp_path, *NORMS, "--impl", "rms_norm/baseline")
    assert own.code == 0
    assert all(result["impl"] == ["rms_norm/baseline"] for result in own.results)
    assert judge(wrong, tmp_path, *NORMS, "--impl", "plugin:").code == 1


def test_other_dtypes_are_unsupported(plugins: Path, tmp_path: Path) -> None:
    options = ("--device", "cpu", "--block", "rms_norm", "--dtype", "bf16")
    run = judge(plugins / "rms_norm_right.so", tmp_path, *options)
    assert run.code == 4
    assert "only f32 is implemented" in run.stdout


@pytest.mark.parametrize("inside", [0, 1])
@pytest.mark.parametrize("fused", [0, 1])
def test_bits_are_those_that_the_kernel_promises(
    plugins: Path, tmp_path: Path, inside: int, fused: int
) -> None:
    recording = ("--fixture", "fixtures/llama-a1/decode-bf16", "--block", "rms_norm")
    library = plugins / f"bf16_norm_{inside}_{fused}.so"
    run = judge(library, tmp_path, "--device", "cpu", *recording)
    kept = inside != fused
    assert run.code == (0 if kept else 1), run.stdout + run.stderr
    assert {result["status"] for result in run.results} == ({"pass"} if kept else {"fail"})


def test_a_device_of_its_own(plugins: Path, tmp_path: Path) -> None:
    device = plugins / "tiny_device.so"
    options = ("--device", "tiny:0", "--dtype", "f32")
    run = judge(device, tmp_path, *options, "--block", "rms_norm")
    assert run.code == 0, run.stdout + run.stderr
    assert {result["device"] for result in run.results} == {"tiny:0"}
    assert all(result["impl"] == ["rms_norm/plugin:tiny"] for result in run.results)
    lacking = judge(device, tmp_path, *options, "--block", "linear")
    assert lacking.code == 4
    assert "[linear] device tiny:0 has no such op" in lacking.stdout


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("no_entry", "has no symbol plumb_plugin_entry"),
        ("hostile_null", "plumb_plugin_entry returned null"),
        ("hostile_version", "version is 9, this harness takes 1 to 2"),
        ("hostile_unknown_op", 'ops[0].name is "rms_morn", which is no op; known: embedding'),
        ("hostile_no_run", "ops[0] (rms_norm): run is null"),
        ("hostile_twice", "ops[1]: rms_norm is there twice"),
        ("hostile_oracle", 'device is "oracle", which is the referee'),
        ("hostile_bits", "contract.accumulator_bits is 0, expected 2 to 53"),
        ("CMakeCache.txt", "cannot be loaded"),
        ("absent", "is not a file"),
    ],
)
def test_what_is_no_plugin_is_refused(
    plugins: Path, tmp_path: Path, library: str, words: str
) -> None:
    file = plugins / (library if "." in library else f"{library}.so")
    run = judge(file, tmp_path, *NORMS)
    assert run.code == 3
    assert run.stderr.startswith(f"harness: [plugin] {file}: ")
    assert words in run.stderr


@pytest.mark.parametrize(
    ("case", "code", "status", "words"),
    [
        ("fails", 5, "device_error", "hostile_fails.so: no rows today"),
        ("silent", 5, "device_error", "hostile_silent.so: returned 7 without a message"),
        ("overrun", 1, "fail", 'wrote out of bounds: byte 0 past the end of output "'),
    ],
)
def test_what_goes_wrong_in_a_call(
    plugins: Path, tmp_path: Path, case: str, code: int, status: str, words: str
) -> None:
    options = (*NORMS, "--fixture", "fixtures/llama-a1/whole-f32", "--repeat", "1")
    run = judge(plugins / f"hostile_{case}.so", tmp_path, *options)
    assert run.code == code
    assert {result["status"] for result in run.results} == {status}
    assert all(words in result["reason"] for result in run.results)


def test_a_plugin_that_nothing_would_run(plugins: Path, tmp_path: Path) -> None:
    run = judge(plugins / "rms_norm_right.so", tmp_path, "--device", "oracle")
    assert run.code == 2
    assert "is for device cpu, which this run does not use: add --device cpu" in run.stderr


def test_two_plugins_for_one_op(plugins: Path, tmp_path: Path) -> None:
    other = str(plugins / "rms_norm_wrong.so")
    run = judge(plugins / "rms_norm_right.so", tmp_path, "--plugin", other, *NORMS)
    assert run.code == 3
    assert "rms_norm is replaced by" in run.stderr


@pytest.fixture(scope="session")
def gpu_sample(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Builds the GPU sample as kernels/plugin.md says, with or without its barrier."""
    out = tmp_path_factory.mktemp("gpu_plugins")

    def build(device: str, barrier: int) -> Path:
        need_device(device)
        library = out / f"{device.replace(':', '-')}-{barrier}.so"
        flags = command("plugin-flags", "--device", device).stdout.split()
        source = PLUGIN_SAMPLES / "gpu_rms_norm.cu"
        subprocess.run(
            ["c++", *flags, f"-DBARRIER={barrier}", str(source), "-o", str(library)], check=True
        )
        return library

    return build


GPU_NORMS = (
    "--block", "rms_norm", "--repeat", "1", "--fixture", "fixtures/llama-a1/decode-bf16"
)  # fmt: skip


@pytest.mark.parametrize("device", ["emu:32", "emu:64", CHECKED[1]])
def test_a_gpu_kernel_passes_on_the_emulator(
    gpu_sample: Callable[[str, int], Path], tmp_path: Path, device: str
) -> None:
    run = judge(gpu_sample(device, 1), tmp_path, "--device", device, *GPU_NORMS)
    assert run.code == 0, run.stdout + run.stderr
    assert all(result["impl"] == ["rms_norm/plugin:gpu_norm"] for result in run.results)


@pytest.mark.nightly
def test_the_checked_emulator_finds_its_race(
    gpu_sample: Callable[[str, int], Path], tmp_path: Path
) -> None:
    device = "emu-check:64"
    run = judge(gpu_sample(device, 0), tmp_path, "--device", device, *GPU_NORMS)
    assert run.code == 5
    assert "race: the " in run.results[0]["reason"]
    assert "gpu_rms_norm.cu:" in run.results[0]["reason"]


def test_flags_of_an_unknown_device() -> None:
    done = command("plugin-flags", "--device", "tpu:0")
    assert done.returncode == 2
    assert 'kind "tpu"; known: cpu, emu, emu-check, cuda, hip' in done.stderr
