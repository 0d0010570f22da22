"""CUDA that knows nothing of this project, on the emulated GPU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness_runs import CHECKED, PLUGIN_SAMPLES, Run, harness, need_device, verify

Build = Callable[..., Path]
RECORDING = ("--fixture", "fixtures/llama-a1/whole-f32")


def flags(device: str, source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [harness(), "plugin-flags", "--device", device, "--source", str(source)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a file of CUDA as kernels/plugin.md says, once for each device and macros."""
    out = tmp_path_factory.mktemp("plain_cuda")

    def compiled(source: str, device: str = "emu-check:32", *macros: str) -> Path:
        need_device(device)
        library = out / f"{source}-{device.replace(':', '-')}{''.join(macros)}.so"
        if not library.is_file():
            printed = flags(device, PLUGIN_SAMPLES / source, out)
            assert printed.returncode == 0, printed.stderr
            words = ["c++", *macros, *printed.stdout.split(), "-o", str(library)]
            subprocess.run(words, cwd=out, check=True)
        return library

    return compiled


def judge(library: Path, tmp_path: Path, block: str, device: str = "emu-check:32") -> Run:
    options = ("--plugin", str(library), "--device", device, "--block", block)
    return verify(tmp_path, *options, *RECORDING)


@pytest.mark.parametrize("block", ["rms_norm", "linear", "softmax"])
@pytest.mark.parametrize("device", ["emu:32", *CHECKED])
def test_kernels_as_they_are_found(build: Build, tmp_path: Path, device: str, block: str) -> None:
    run = judge(build("plain_cuda_plugin.cu", device), tmp_path, block, device)
    assert run.code == 0, run.stdout + run.stderr
    assert all(result["impl"] == [f"{block}/plugin:plain_cuda"] for result in run.results)


def test_16_bit_numbers(build: Build, tmp_path: Path) -> None:
    library = build("plain_cuda_plugin.cu", "emu:32")
    for dtype in ("bf16", "f16"):
        options = ("--device", "emu:32", "--block", "rms_norm", "--dtype", dtype)
        recording = ("--fixture", "fixtures/llama-a1/decode-bf16")
        run = verify(tmp_path, "--plugin", str(library), *options, *recording)
        assert run.code == 0, run.stdout + run.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("macro", "block", "words"),
    [
        ("-DTAIL=0", "linear", r"read out of bounds \(4 bytes, .*\) at plain_cuda.cu:(\d+)"),
        (
            "-DBARRIER=0",
            "rms_norm",
            r"race: the .* at plain_cuda.cu:(\d+) and the .* at plain_cuda",
        ),
    ],
)
def test_what_is_wrong_with_them(
    build: Build, tmp_path: Path, macro: str, block: str, words: str
) -> None:
    run = judge(build("plain_cuda_plugin.cu", "emu-check:32", macro), tmp_path, block)
    assert run.code == 5
    found = [re.search(words, result["reason"]) for result in run.results]
    assert any(found), run.stdout
    reason = next(r["reason"] for r, match in zip(run.results, found, strict=True) if match)
    assert "[cuda] kernel " in reason
    assert re.search(r"block \(\d+,\d+,\d+\) thread \(\d+,\d+,0\) lane \d+", reason)
    line = int(next(match for match in found if match)[1])
    text = (PLUGIN_SAMPLES / "plain_cuda.cu").read_text().splitlines()[line - 1]
    assert ("= b[" if block == "linear" else "shared[") in text


@pytest.mark.parametrize("device", ["emu:64", CHECKED[0]])
def test_the_ways_to_write_a_launch(build: Build, tmp_path: Path, device: str) -> None:
    run = judge(build("plain_cuda_forms.cu", device), tmp_path, "add", device)
    assert run.code == 0, run.stdout + run.stderr


def test_a_compiler_for_a_gpu_gets_the_file_itself(tmp_path: Path) -> None:
    source = PLUGIN_SAMPLES / "plain_cuda_plugin.cu"
    words = flags("cuda:0", source, tmp_path).stdout.split()
    assert words[-1] == str(source)
    assert '-DPLUMB_DEVICE="cuda:0"' in words
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("void f() { 3 + <<<1, 2>>>(x); }", "1: a launch of what is no kernel's name"),
        ("void f() {\n  k<<<1, 2;\n}", "2: a launch without >>>"),
        ("void f() {\n\n  k<<<1, 2>>>;\n}", "3: a launch without arguments"),
        ("void f() { __shared__ float (*x)[3]; }", "1: a __shared__ variable without a name"),
        ("void f() { k(<<<1, 2>>>(x); }", "1: a launch of what is no kernel's name"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, code: str, words: str) -> None:
    (tmp_path / "k.cu").write_text(code)
    done = flags("emu-check:32", tmp_path / "k.cu", tmp_path)
    assert done.returncode == 3
    assert done.stderr == f"harness: [plugin-flags] {tmp_path / 'k.cu'}:{words}\n"


def test_a_source_that_is_missing(tmp_path: Path) -> None:
    done = flags("emu-check:32", tmp_path / "none.cu", tmp_path)
    assert done.returncode == 3
    assert f"{tmp_path / 'none.cu'} is not a file" in done.stderr
