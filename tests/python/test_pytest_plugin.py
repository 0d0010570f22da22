"""The pytest plugin, from outside: a run of pytest in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from verdict_schemas import valid

ROOT = Path(__file__).parents[2]

TESTS = """
import torch

def test_right(plumbline):
    verdict = plumbline.check(torch.tanh, like=torch.nn.Tanh(), inputs=torch.ones(4, 16).cumsum(1))
    assert verdict.passed

def test_plain():
    import python_inspector
    python_inspector.check(torch.tanh, like=torch.nn.Tanh(), inputs=torch.ones(4, 16).cumsum(1))

def test_plain_wrong():
    import python_inspector
    x = torch.ones(4, 16).cumsum(1)
    python_inspector.check(lambda x: x.tanh() * 1.01, like=torch.nn.Tanh(), inputs=x)

def test_expected():
    import pytest, python_inspector
    x = torch.ones(4, 16).cumsum(1)
    with pytest.raises(python_inspector.WrongError):
        python_inspector.check(lambda x: x, like=torch.nn.Tanh(), inputs=x)

def test_wrong(plumbline):
    plumbline.check(lambda x: x.tanh() * 1.01, torch.nn.Tanh(), torch.ones(4, 16).cumsum(1))

def norm(inputs, weights, params):
    x = inputs["x"]
    n = x / (x.pow(2).mean(-1, keepdim=True) + params["eps"]).sqrt()
    return n * weights["weight"]

def test_recorded(plumbline):
    verdicts = plumbline.verify(norm, "llama-a1/whole-f32", checkpoint="^model.norm#0$")
    assert [v.passed for v in verdicts] == [True]

def test_recorded_wrong(plumbline):
    plumbline.verify(lambda i, w, p: norm(i, w, p) * 2, "llama-a1/whole-f32",
                     checkpoint="^model.norm#0$")
"""


WRONG = ("test_plain_wrong", "test_wrong", "test_recorded_wrong")


def run(folder: Path, harness: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest of that folder with the plugin."""
    command = [sys.executable, "-m", "pytest", "-p", "python_inspector.api.pytest_plugin"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "PLUMB_HARNESS": str(harness),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "GITHUB_ACTIONS": "",
    }  # fmt: skip
    return subprocess.run(
        [*command, "-q", "--rootdir", folder, *options, "test_it.py"],
        capture_output=True, text=True, env=environment, cwd=folder,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "test_it.py").write_text(TESTS)
    return folder


@pytest.fixture(scope="module")
def everything(folder: Path, harness: Path) -> subprocess.CompletedProcess[str]:
    """All tests, with all that the plugin can write."""
    written = ("--plumbline-html", "out.html", "--plumbline-json", "out.json")
    return run(folder, harness, *written, "--plumbline-annotate")


@pytest.fixture(scope="module")
def failures(folder: Path, harness: Path) -> subprocess.CompletedProcess[str]:
    """Those that fail, without an option."""
    return run(folder, harness, "-k", " or ".join(WRONG))


def test_the_run_ends_with_a_section_of_verdicts(everything, failures) -> None:
    assert everything.returncode == failures.returncode == 1
    assert "3 failed, 4 passed" in everything.stdout
    section = everything.stdout.partition("= plumbline =")[2]
    assert "7 verdicts: 4 fail, 3 pass" in section
    assert "3 verdicts: 3 fail" in failures.stdout.partition("= plumbline =")[2]
    assert "test_it.py::test_expected" not in section
    for done in (everything, failures):
        section = done.stdout.partition("= plumbline =")[2]
        assert "test_it.py::test_wrong\n  Tanh#0 (module): fail: " in section
        assert "test_it.py::test_recorded_wrong\n  model.norm#0 (rms_norm): fail: " in section


def test_a_failure_shows_the_test_and_the_verdict_and_nothing_of_ours(failures) -> None:
    assert "FAILED test_it.py::test_plain_wrong - plumbline.WrongError: Tanh#0" in failures.stdout
    assert "python_inspector/api/checking.py" not in failures.stdout
    assert "pytest_plugin.py" not in failures.stdout


def test_all_verdicts_are_written_as_a_page(everything, folder: Path) -> None:
    page = (folder / "out.html").read_text()
    assert f"7 verdicts written to {folder / 'out.html'}" in everything.stdout
    assert page.count("<h2>") == 7
    assert "test_it.py::test_right" in page and "allowed" in page


def test_all_verdicts_are_written_as_json(everything, folder: Path) -> None:
    assert f"7 verdicts written to {folder / 'out.json'}" in everything.stdout
    made = valid(json.loads((folder / "out.json").read_text()), "verdicts")
    said = {it["test"].partition("::")[2]: it for it in made["verdicts"]}
    assert said["test_right"]["verdict"]["status"] == "pass"
    assert said["test_expected"]["test_passed"]
    assert not said["test_wrong"]["test_passed"]
    assert said["test_expected"]["verdict"]["status"] == "fail"


def test_annotations_are_of_what_no_test_asked_for(everything, failures) -> None:
    marks = [line for line in everything.stdout.splitlines() if line.startswith("::")]
    assert len(marks) == 3
    assert marks[0].startswith("::error file=test_it.py,line=12,title=plumbline fail::Tanh#0 ")
    assert "%0A" in marks[0]
    assert not any(line.startswith("::") for line in failures.stdout.splitlines())


def test_a_page_without_a_folder_is_a_usage_error(folder: Path, harness: Path) -> None:
    for option in ("--plumbline-html", "--plumbline-json"):
        done = run(folder, harness, option, "nowhere/out")
        assert done.returncode == 4
        assert f"{option} nowhere/out: there is no folder" in done.stderr


def test_without_verdicts_there_is_no_section(tmp_path: Path, harness: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_nothing(plumbline): pass\n")
    done = run(tmp_path, harness)
    assert "1 passed" in done.stdout and "plumbline =" not in done.stdout


def test_the_package_declares_it() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {
        "plumbline": "plumbline.inspector.api.pytest_plugin"
    }
