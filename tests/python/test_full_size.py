"""ci/full_size: what it makes of the commands that it runs."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from harness_runs import ROOT


@pytest.fixture
def full_size() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("full_size", str(ROOT / "ci" / "full_size"))
    spec = importlib.util.spec_from_loader("full_size", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["full_size"] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


def test_a_command_is_stopped_when_it_takes_too_long(full_size: ModuleType) -> None:
    done = full_size.run([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert done.code == 124 and done.seconds < 30
    assert full_size.verdict(done) == "not done in time"


# A child that has not yet become its program counts as large as its parent: with all tests in it,
# this process would be measured.
SMALL = """
import dataclasses, json, runpy, sys
run = runpy.run_path("ci/full_size")["run"]
command = [sys.executable, "-c", "x = b'x' * (200 << 20); print('said')"]
print(json.dumps(dataclasses.asdict(run(command, 60))))
"""


def test_time_memory_and_text_of_a_command() -> None:
    small = subprocess.run([sys.executable, "-c", SMALL], cwd=ROOT, check=True, capture_output=True)
    done = json.loads(small.stdout)
    assert (done["code"], done["text"]) == (0, "said\n")
    assert 0.15 < done["gigabytes"] < 1 and 0 < done["seconds"] < 60


def test_the_verdict_is_the_harness_own(full_size: ModuleType) -> None:
    text = "\n2491 checkpoints in 46.47 s: 2483 pass, 8 blind   blind: nothing failed, but no ..."
    assert full_size.verdict(full_size.Run(8, 1, 1, text)) == "2483 pass, 8 blind"
    assert full_size.verdict(full_size.Run(139, 1, 1, "")) == "exit code 139"


@pytest.mark.parametrize(("verified", "good"), [(0, True), (8, True), (1, False), (124, False)])
def test_a_case_is_good_when_all_of_it_is(
    full_size: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verified: int,
    good: bool,
) -> None:
    commands = []

    def run(command: list[str], timeout: float, env: dict[str, str]):
        commands.append(command)
        if "record" in command:
            out = Path(command[command.index("--out") + 1])
            out.mkdir()
            (out / "tensors.safetensors").write_bytes(bytes(1000))
        code = verified if "--fixture" in command else 0
        return full_size.Run(code, 5.0, 1.0, "3 checkpoints in 1.00 s: 3 pass   pass: ...")

    monkeypatch.setattr(full_size, "run", run)
    options = argparse.Namespace(device="cuda:0", work=tmp_path, harness="harness", timeout=9)
    case = next(case for case in full_size.CASES if "--rows" in case.options)
    line, fine = full_size.measure(case, options, {})
    assert fine == good and case.name in line
    assert "--rows" in commands[1] and commands[2][-2:] == ["--device", "cuda:0"]
    late = full_size.Case("late", case.model, case.options, 1, 90, 1)
    line, fine = full_size.measure(late, options, {case.model: tmp_path})
    assert not fine and "5.0 (!)" in line


def test_the_folder_for_models_is_made(
    full_size: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(case: object, options: argparse.Namespace, made: object) -> tuple[str, bool]:
        assert options.work.parent == tmp_path / "not" / "there"
        return "a line", True

    monkeypatch.setattr(full_size, "measure", measure)
    given = ["--work", str(tmp_path / "not" / "there"), "--harness", sys.executable]
    monkeypatch.setattr(sys, "argv", ["full_size", "--only", "chained", *given])
    assert full_size.main() == 0
    assert list((tmp_path / "not" / "there").iterdir()) == []
