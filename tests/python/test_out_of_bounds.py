"""Kernels that touch memory outside their operands, which no result depends on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from harness_runs import CHECKED, PLUGIN_SAMPLES, ROOT, Run, command, need_device, verify

RECORDING = ("--fixture", "fixtures/llama-a1/whole-f32")
# Fault: the block that shows it, what is touched, and where on the host.
FAULTS = {
    "before": ("rms_norm", "read", '4 byte(s) before the start of input "x"'),
    "after": ("rms_norm", "read", 'byte 0 past the end of input "weight"'),
    "row_beyond": ("rms_norm", "read", 'byte 400 past the end of input "x"'),
    "tail": ("rms_norm", "read", 'past the end of input "x"'),
    "write_before": ("rms_norm", "wrote", '4 byte(s) before the start of output "out"'),
    "write_after": ("rms_norm", "wrote", 'byte 0 past the end of output "out"'),
    "gemm_tail": ("linear", "read", 'byte 0 past the end of input "weight"'),
    "rotary": ("rotary", "read", 'byte 0 past the end of input "cos"'),
    "softmax": ("softmax", "read", 'byte 0 past the end of input "x"'),
}


def judge(
    monkeypatch: pytest.MonkeyPatch,
    library: Path,
    tmp_path: Path,
    device: str,
    fault: str,
    block: str,
) -> Run:
    monkeypatch.setenv("OUT_OF_BOUNDS", fault)
    options = ("--plugin", str(library), "--device", device, "--block", block)
    return verify(tmp_path, *options, *RECORDING)


def require_line(reason: str, source: str, fault: str) -> None:
    """The line that the reason names is marked as this fault's in its source."""
    found = re.search(re.escape(source) + r":(\d+)", reason)
    assert found, reason
    line = (PLUGIN_SAMPLES / source).read_text().splitlines()[int(found[1]) - 1]
    assert f"fault: {fault}" in line, (reason, line)


@pytest.fixture(scope="module")
def host_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out_of_bounds") / "host.so"
    source = PLUGIN_SAMPLES / "out_of_bounds.c"
    flags = ["-O2", "-g", "-shared", "-fPIC", f"-I{ROOT}"]
    subprocess.run(["cc", *flags, str(source), "-o", str(out), "-lm"], check=True)
    return out


@pytest.mark.parametrize("block", ["rms_norm", "linear", "rotary", "softmax"])
def test_right_kernels_pass(
    monkeypatch: pytest.MonkeyPatch, host_kernels: Path, tmp_path: Path, block: str
) -> None:
    run = judge(monkeypatch, host_kernels, tmp_path, "cpu", "none", block)
    assert run.code == 0, run.stdout + run.stderr


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_for_the_cpu(
    monkeypatch: pytest.MonkeyPatch, host_kernels: Path, tmp_path: Path, fault: str
) -> None:
    block, verb, words = FAULTS[fault]
    run = judge(monkeypatch, host_kernels, tmp_path, "cpu", fault, block)
    assert run.code == 1, run.stdout + run.stderr
    assert {result["status"] for result in run.results} == {"fail"}
    for result in run.results:
        assert f": {verb} out of bounds: " in result["reason"]
        assert f"{words} at " in result["reason"]
        require_line(result["reason"], "out_of_bounds.c", fault)


def test_a_kernel_that_writes_to_its_input(
    monkeypatch: pytest.MonkeyPatch, host_kernels: Path, tmp_path: Path
) -> None:
    run = judge(monkeypatch, host_kernels, tmp_path, "cpu", "write_input", "rms_norm")
    assert run.code == 1
    assert 'wrote to its input "x", byte ' in run.results[0]["reason"]
    require_line(run.results[0]["reason"], "out_of_bounds.c", "write_input")


@pytest.mark.parametrize("need", ["trap", "differ"])
def test_a_right_kernel_may_ask_where_operands_begin(
    monkeypatch: pytest.MonkeyPatch, host_kernels: Path, tmp_path: Path, need: str
) -> None:
    monkeypatch.setenv("OUT_OF_BOUNDS", need)
    options = ("--device", "cpu", "--block", "activation")
    recording = ("--fixture", "fixtures/gemma2-a4/decode-f32")  # rows of 53
    run = verify(tmp_path, "--plugin", str(host_kernels), *options, *recording)
    assert run.code == 0, run.stdout + run.stderr
    assert {result["status"] for result in run.results} == {"pass", "unsupported"}


def test_another_crash_is_one(
    monkeypatch: pytest.MonkeyPatch, host_kernels: Path, tmp_path: Path
) -> None:
    run = judge(monkeypatch, host_kernels, tmp_path, "cpu", "null", "rms_norm")
    assert run.code == 5
    assert "killed by signal 11" in run.results[0]["reason"]


@pytest.fixture(scope="module", params=CHECKED)
def emulated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    device: str = request.param
    need_device(device)
    out = tmp_path_factory.mktemp("out_of_bounds") / "gpu.so"
    flags = command("plugin-flags", "--device", device).stdout.split()
    source = PLUGIN_SAMPLES / "out_of_bounds.cu"
    subprocess.run(["c++", *flags, str(source), "-o", str(out)], check=True)
    return device, out


@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_a_kernel_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch, emulated: tuple[str, Path], tmp_path: Path, fault: str
) -> None:
    device, library = emulated
    block, verb, _ = FAULTS.get(fault, ("rms_norm", "", ""))
    run = judge(monkeypatch, library, tmp_path, device, fault, block)
    if fault == "none":
        assert run.code == 0, run.stdout + run.stderr
        return
    assert run.code == 5, run.stdout + run.stderr
    verb = {"read": "read", "wrote": "write"}[verb]
    for result in run.results:
        reason = result["reason"]
        assert f"{verb} out of bounds (4 bytes, " in reason
        assert re.search(r"block \(\d+,\d+,\d+\) thread \(\d+,0,0\) lane \d+", reason)
        require_line(reason, "out_of_bounds.cu", fault)
