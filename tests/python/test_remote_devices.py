"""Devices whose ops another program computes: exec:CMD and python:MODULE."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness_runs import harness

ROOT = Path(__file__).parents[2]

NORM = """
import numpy as np

def rms_norm(x, weight, p):
    x = x.astype(np.float64)
    n = x / np.sqrt((x * x).mean(-1, keepdims=True) + p.eps)
    return (p.weight_offset + weight) * (p.rounded(n) if p.weight_after_rounding else n)
"""
OF_TORCH = """
import torch

arrays = "torch"

def rms_norm(x, weight, p):
    print("what a module prints is no answer")
    n = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + p.eps)
    n = n.to(x.dtype).double() if p.weight_after_rounding else n
    return (p.weight_offset + weight.double()) * n
"""


def judged(folder: Path, device: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Of the recordings of one tiny model."""
    command = [harness(), "--device", device, *words]
    if "--suite" not in words:
        command += ["--fixture", str(ROOT / "fixtures" / "llama-a1" / "whole-f16")]
    environment = os.environ | {"PLUMB_PYTHON": sys.executable}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )


def test_numpy_passes(tmp_path: Path) -> None:
    done = judged(tmp_path, "python:numpy", "--repeat", "1")
    assert done.returncode == 0, done.stdout[-2000:]


def test_formulas_are_computed_from_their_text(tmp_path: Path) -> None:
    words = ("--suite", "ops", "--checkpoint", "^(sub|silu|lt|where|softcap|affine)/")
    done = judged(tmp_path, "python:numpy", *words)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("text", [NORM, OF_TORCH])
def test_functions_of_a_module(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    done = judged(tmp_path, "python:mine", "--block", "rms_norm")
    assert done.returncode == 0, done.stdout[-2000:]
    other = judged(tmp_path, "python:mine", "--block", "linear")
    assert other.returncode == 4
    assert "[linear] python:mine: has no such op" in other.stdout


def test_a_wrong_function_fails(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NORM.replace("+ p.eps", "+ 2 * p.eps + 1e-3"))
    assert judged(tmp_path, "python:mine", "--block", "rms_norm").returncode == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("raise ValueError('no')", "[rms_norm] python:mine: ValueError: no"),
        ("return x[..., :3]", "[rms_norm] python:mine: ValueError: out is ["),
        ("return x, x", "[rms_norm] python:mine: ValueError: 2 results, expected 1: out"),
        ("import os; os._exit(3)", "[rms_norm] python:mine: exited with code 3"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by signal 11 (Segmentation fault)"),
    ],
)
def test_what_goes_wrong_in_a_call_costs_the_call(tmp_path: Path, line: str, words: str) -> None:
    text = NORM.replace(
        "    x = x.astype", f"    if x.shape[-1] < 16: return x\n    {line}\n    x = x.astype"
    )
    (tmp_path / "mine.py").write_text(text)
    done = judged(tmp_path, "python:mine", "--block", "rms_norm")
    assert done.returncode == 5
    assert words in done.stdout


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("exec:", "exec: names no COMMAND: exec:COMMAND"),
        ("exec:no-such-command", "[exec:no-such-command] exited with code 127"),
        ("exec:true", "[exec:true] ended before its first message"),
        ("exec:echo hello world, this is no message", 'sent "hello world, this is no message'),
        ("python:no_such_module", "[python:no_such_module] exited with code 1"),
    ],
)
def test_what_is_no_device(tmp_path: Path, device: str, words: str) -> None:
    done = judged(tmp_path, device, "--block", "rms_norm")
    assert done.returncode in (2, 5)
    assert words in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("rms_norm", "rms_nrom"), '"rms_nrom" is no op; harness list --ops has them'),
        (("def rms_norm", "def helper(x): return x\ndef rms_norm"), '"helper" is no op'),
    ],
)
def test_names_that_are_no_ops(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    (tmp_path / "mine.py").write_text(OF_TORCH.replace(*change, 1))
    done = judged(tmp_path, "python:mine", "--block", "rms_norm")
    assert words in done.stdout + done.stderr
    assert done.returncode == 5


def test_every_parameter_of_a_plugin_is_sent() -> None:
    header = (ROOT / "kernels" / "plugin.h").read_text()
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    fields: list[str] = []
    for struct in ("plumb_params", "plumb_more_params"):
        body = header.split(f"typedef struct {struct} {{")[1].split("}")[0]
        for line in re.findall(r"(?:double|int32_t|int64_t) ([^;]+);", body):
            fields += [re.sub(r"\[.*", "", name.strip()) for name in line.split(",")]
    text = (ROOT / "kernels" / "plugin" / "call_params.cpp").read_text()
    sent = re.findall(r'add\(out, "(\w+)", params\.(?:first|more)\.\1\);', text)
    assert sent == fields
