"""`plumbline`, and `plumbline check`: one command that hands over, and a kernel judged from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness_runs import ROOT

from python_inspector import Proof, exit_codes
from python_inspector.cli import inspector as cli
from python_inspector.cli import plumbline as command
from python_inspector.effort import EFFORTS
from python_inspector.format import operands

KERNELS = """
import torch
from neighbour import EPS

norm = torch.nn.RMSNorm(32, eps=EPS)

def right(x, weight=None):
    w = norm.weight if weight is None else weight
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w

def wrong(x):
    return right(x) * 1.01

def inputs():
    return (torch.randn(5, 32),)
"""


@pytest.fixture
def kernels(tmp_path: Path, harness: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PLUMB_HARNESS", str(harness))
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "neighbour.py").write_text("EPS = 1e-6\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    return str(tmp_path / "kernels.py")


def save(path: Path, **tensors: torch.Tensor) -> str:
    outputs = {name.strip("_"): operands.output_of(value) for name, value in tensors.items()}
    operands.save(outputs, path)
    return str(path)


def test_a_right_and_a_wrong_kernel(kernels: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--like", f"{kernels}:norm", "--inputs", f"{kernels}:inputs"]
    assert cli.main(["check", f"{kernels}:right", *words]) == 0
    assert capsys.readouterr().out.startswith("RMSNorm#0 (module): pass")
    assert cli.main(["check", f"{kernels}:wrong", *words]) == 1
    assert "RMSNorm#0 (module): fail: " in capsys.readouterr().out


def test_inputs_and_weights_from_files(kernels: str, tmp_path: Path) -> None:
    x, weight = torch.randn(4, 32), torch.rand(32) + 0.5
    by_name = save(tmp_path / "named.safetensors", x=x)
    in_order = save(tmp_path / "ordered.safetensors", _0=x)
    words = ["check", f"{kernels}:right", "--like", f"{kernels}:right"]
    for inputs in (by_name, in_order):
        assert cli.main([*words, "--inputs", inputs]) == 0
    weights = save(tmp_path / "weights.safetensors", weight=weight)
    assert cli.main([*words, "--inputs", in_order, "--weights", weights]) == 0
    silu = ["torch.nn.functional:silu", "--like", "torch.nn.functional:silu"]
    assert cli.main(["check", *silu, "--inputs", in_order]) == 0


@pytest.mark.parametrize(
    ("function", "like", "said"),
    [
        ("nowhere.py:f", "torch:tanh", "nowhere.py: there is no such file"),
        ("torch:tanhh", "torch:tanh", "torch:tanhh: torch has no tanhh"),
        ("torch.nowhere:f", "torch:tanh", "there is no module torch.nowhere"),
        ("tanh", "torch:tanh", "tanh: expected FILE.py:NAME or package.module:NAME"),
        ("torch:tanh", "torch.nn:Tanh", "--like torch.nn:Tanh: is a class; name a module"),
    ],
)
def test_what_is_not_there_is_one_line(
    function: str, like: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", function, "--like", like, "--inputs", "torch:rand"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("inspector: ") and said in line and line.count("\n") == 1


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "python_inspector.cli.plumbline", *words], cwd=ROOT, text=True,
        capture_output=True, env=os.environ | variables,
    )  # fmt: skip


def test_each_program_is_handed_its_words(harness: Path) -> None:
    here = {"PLUMB_HARNESS": str(harness)}
    assert run("show", "llama-a1/whole-f32").stdout.startswith("llama-a1/whole-f32\n")
    words = ["--block", "rms_norm", "--device", "cpu", "--fixture", "llama-a1/whole-f32"]
    verified = run("harness", *words, **here)
    assert verified.returncode == 0 and "7 checkpoints" in verified.stdout
    assert run("report", "--help").stdout.startswith("usage: reports render")
    assert run("history", "--db", "/no/such", "list").stderr.startswith("reports: ")
    assert run("verify", PLUMB_HARNESS="/no/such").stderr == (
        "plumbline: /no/such (PLUMB_HARNESS) is no program that can be run\n"
    )


def test_help_has_every_command_and_typos_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["plumbline"])
    assert command.main() == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in (*command.COMMANDS, *command.PROGRAMS))
    monkeypatch.setattr(sys, "argv", ["plumbline", "exit-codes"])
    assert command.main() == 0
    assert "  8  blind: nothing was proved" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["plumbline", "recrod", "--model", "x"])
    assert command.main() == 2
    assert "there is no command 'recrod'; did you mean record?" in capsys.readouterr().err


def test_exit_codes_are_those_of_the_harness(harness: Path) -> None:
    printed = subprocess.run([harness, "--help"], capture_output=True, text=True).stdout
    found = re.search(r"^Exit codes: (.*)\.$", printed, re.MULTILINE)
    assert found
    theirs = {name: int(code) for code, name in (it.split() for it in found[1].split(", "))}
    alone = ("error", "timer_disagrees")  # of kernels in Python
    mine = {name: code for name, code in exit_codes.STATUSES.items() if name not in alone}
    assert theirs == mine | {"usage": exit_codes.USAGE}
    others = {exit_codes.INTERRUPTED, exit_codes.TIMER}
    assert {*theirs.values(), *others} == exit_codes.MEANINGS.keys()


def test_help_says_what_each_effort_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.build_parser().parse_args(["record", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    for word in EFFORTS:
        proof = Proof.of(word)
        kernels = f"{proof.spread} simulated kernels" if proof.oracle else "no float64 run"
        assert f"{word}: {kernels}{'' if proof.bugs else ', no planted bugs'}" in printed


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("recrod", "did you mean record?"),
        ("record --model tiny:llama --out x --dtype bfloat", "none of auto, f32, bf16"),
        ("record --model m --out x --max-new-tokens 5", "--max-new-tokens; did you mean --steps,"),
        ("record --model m --out x --max_new_tokens 5", "did you mean --steps,"),
        ("record --model m --out x --max_length 5", "did you mean --max-length?"),
        ("record --model m --out x --torch_dtype bfloat16", "did you mean --dtype?"),
        ("generate --model m --prompt x --max-new-tokens 5", "did you mean -- --max-new-tokens,"),
        ("show llama-a1 --chekpoint x", "there is no --chekpoint; did you mean --checkpoint?"),
    ],
)
def test_inspector_says_what_was_meant(
    words: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(words.split())
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert hint in printed and printed.startswith("usage: inspector")


def test_reports_says_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    from reports.__main__ import main

    for words, hint in (("histroy", "did you mean history?"),
                        ("history list --dbs x", "did you mean --db?"),
                        ("history list --db x", "--db goes in front of list"),
                        ("render x --htlm y", "did you mean --html?")):  # fmt: skip
        with pytest.raises(SystemExit):
            main(words.split())
        assert hint in capsys.readouterr().err


def test_dtypes_by_their_names_in_torch() -> None:
    parser = cli.build_parser()
    for name, ours in {"float32": "f32", "torch.bfloat16": "bf16", "half": "f16"}.items():
        words = ["record", "--model", "m", "--out", "x", "--dtype", name]
        assert parser.parse_args(words).dtype == ours
