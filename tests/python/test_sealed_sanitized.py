"""check(sealed=Sealed(sanitize=True)) with a program of the sanitizer's name: its report is read,
and nothing is concluded from one without the kernel that is wrong on purpose."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from checked import sealed_verdict
from verdict_schemas import valid

from python_inspector import Sealed, Verdict
from python_inspector.api import sanitizing
from python_inspector.cli import inspector as cli

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

KERNELS = Path(__file__).parent / "sealed_kernels.py"
PROGRAM = """#!{python}
import json, subprocess, sys
_, tool, _, report, *command = sys.argv[1:]
run = subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False)
control = ""
for line in sys.stdin.buffer:
    run.stdin.write(line)
    run.stdin.flush()
    control = json.loads(line).get("name", control)
    if control:
        break
run.stdin.close()
run.wait()
with open(report, "w") as file:
    file.write({text}.replace("CONTROL", control))
"""
INVALID = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at {kernel}+0x80
=========     by thread (5,0,0) in block (0,0,0)
=========     Address 0x7f1 is out of bounds
=========
"""
RACE = """========= Error: Race reported between Write access at {kernel}+0x40
=========     and Read access at {kernel}+0x60 [252 hazards]
=========
"""
END = """========= ERROR SUMMARY: 1 error
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def control(text: str) -> str:
    return text.format(kernel="CONTROL")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / sanitizing.PROGRAM


def judged(program: Path, text: str, name: str = "right") -> Verdict:
    program.write_text(PROGRAM.format(python=sys.executable, text=repr(text)))
    program.chmod(0o700)
    sealed = Sealed(timeout=60, spare=False, sanitize=True)
    return sealed_verdict(KERNELS, name, sealed=sealed)


def test_nothing_is_found_but_the_control(program: Path) -> None:
    verdict = judged(program, control(INVALID) + control(RACE) + END)
    assert verdict.status == "pass", verdict
    assert verdict.sanitized.startswith("memcheck and racecheck found nothing")
    assert "sanitizer: memcheck and racecheck found nothing" in str(verdict)
    assert valid(verdict.to_json(), "verdict")["sanitized"] == verdict.sanitized


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (INVALID, "memcheck: Invalid __global__ write of size 4 bytes in norm(float *, int)"),
        (RACE, "memcheck: Race reported between Write access at norm(float *, int)+0x40"),
    ],
)
def test_what_is_found_is_a_failure(program: Path, text: str, words: str) -> None:
    found = text.format(kernel="norm(float *, int)")
    for report in (found + control(INVALID), found):
        verdict = judged(program, report)
        assert verdict.status == "fail", verdict
        assert words in verdict.reason


@pytest.mark.parametrize("text", ["", END, "========= Internal Sanitizer Error\n"])
def test_without_the_control_nothing_is_concluded(program: Path, text: str) -> None:
    verdict = judged(program, text)
    assert verdict.status == "unsupported", verdict
    assert "sanitizer does not work here: memcheck did not find the kernel" in verdict.reason


def test_no_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sanitizing, "PROGRAM", "no-sanitizer")
    verdict = judged(tmp_path / "elsewhere", "")
    assert verdict.status == "unsupported"
    assert "sanitizer does not work here: no-sanitizer is not on PATH" in verdict.reason


def test_what_is_wrong_anyway_stays_wrong(program: Path) -> None:
    assert judged(program, "", "without_eps").status == "fail"


def test_entries_of_older_and_newer_reports() -> None:
    old = INVALID.replace("at {kernel}+0x80", "at 0x80 in kernels.cu:12:{kernel}")
    assert sanitizing.entries_of(old.format(kernel="norm(int)")) == [
        "Invalid __global__ write of size 4 bytes in kernels.cu:12:norm(int)"
    ]
    hazard = "========= ERROR: Potential WAW hazard detected at __shared__ 0x0 in block (0, 0, 0) :"
    assert sanitizing.entries_of(hazard)
    assert sanitizing.entries_of(END + "========= Target application returned an error\n") == []
    twice = INVALID.format(kernel="norm") * 2
    assert len(sanitizing.entries_of(twice)) == 1


@pytest.mark.parametrize("option", ["--time", "--sanitize", "--salt=3"])
def test_the_command_asks_for_a_process(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "torch:tanh", "--like", "torch:tanh", "--inputs", "torch:rand", option]
    assert cli.main(words) == 2
    assert f"{option.partition('=')[0]}: only with --sealed" in capsys.readouterr().err
