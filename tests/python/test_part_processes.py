"""Processes that make the parts of a recording: side by side, killed, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked import Forked
from harness_runs import ROOT
from test_cli import refused
from test_parts import files, names, recorded, words

from python_inspector.cases import parts
from python_inspector.cli import inspector as cli
from python_inspector.errors import ProcessError
from python_inspector.models import tiny

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")

RUN = "--steps 1 --jobs 2"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny.build("llama", torch.bfloat16, seed=1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(model, tmp_path_factory.mktemp("whole") / "x", "--steps 1 --jobs 1")


@pytest.fixture
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a command's output."""
    return tmp_path_factory.mktemp("printed")


def require_same(out: Path, whole: Path) -> None:
    """But for where --out is."""
    mine, theirs = files(out), files(whole)
    assert mine.keys() == theirs.keys()
    for name, content in mine.items():
        assert content.replace(str(out).encode(), str(whole).encode()) == theirs[name], name


STOPPING = """
import os, signal, sys
from python_inspector.cli import inspector as cli
from python_inspector.format.writer import RecordingWriter
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
count, by, *words = sys.argv[1:]
commit, made = RecordingWriter.commit, []
def counted(self, *given):
    if len(made) == int(count):
        print("stopped", flush=True)
        os.kill(os.getpid(), getattr(signal, by))
    made.append(commit(self, *given))
    return made[-1]
RecordingWriter.commit = counted
sys.exit(cli.main(words))
"""
"""The command, which gets a signal before it puts a part in place, after so many."""


def started(given: list[str], count: int, by: str, folder: Path) -> Forked:
    """What it prints is in `folder`."""
    return Forked(STOPPING, [str(count), by, *given], folder, ROOT)


def parts_of(out: Path) -> dict[str, int]:
    """The parts of a recording that was killed, and when each was put in place."""
    return {path.name: path.stat().st_ctime_ns for path in parts.complete(parts.folder_of(out))}


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_processes_make_the_parts_that_one_does(
    model: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = recorded(model, tmp_path / "deep" / "two", RUN)
    require_same(out, whole)
    assert names(tmp_path / "deep") == ["two"]
    said = capsys.readouterr().out
    assert f"{out}: {len(names(whole))} parts" in said
    assert f"verify it: harness --fixture {out}" in said


@pytest.mark.sampled
@pytest.mark.parametrize(("count", "by"), [(0, "SIGKILL"), (2, "SIGTERM"), (1, "SIGINT")])
def test_a_command_that_is_killed_is_resumed(
    count: int, by: str, model: Path, whole: Path, tmp_path: Path, printed: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = words(model, tmp_path / "x", "--steps 1 --jobs 1")
    command = started(given, count, by, printed)
    command.wait()
    assert command.returncode == (130 if by == "SIGINT" else -getattr(signal, by))
    left = parts_of(tmp_path / "x")
    assert len(left) == count and not (tmp_path / "x").exists()
    if by == "SIGINT":
        assert f"interrupted; {count} complete parts stay in " in command.stderr
    capsys.readouterr()

    assert cli.main([*words(model, tmp_path / "x", RUN), "--resume"]) == 0
    said = capsys.readouterr().out
    assert (f"resuming: {count} parts are complete in " if count else "nothing to resume") in said
    require_same(tmp_path / "x", whole)
    assert {name: (tmp_path / "x" / name).stat().st_ctime_ns for name in left} == left
    assert names(tmp_path) == ["x"]


def test_without_resume_it_begins_anew(
    model: Path, whole: Path, tmp_path: Path, printed: Path
) -> None:
    given = words(model, tmp_path / "x", "--steps 1 --jobs 1")
    started(given, 2, "SIGKILL", printed).wait()
    (first, _) = parts.complete(parts.folder_of(tmp_path / "x"))
    (first / "recording.json").write_text("{}")
    assert cli.main(given) == 0
    require_same(tmp_path / "x", whole)


def test_another_run_is_refused_and_what_is_complete_stays(
    model: Path, whole: Path, tmp_path: Path, printed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x"
    started(words(model, out, "--steps 1 --jobs 1"), 2, "SIGKILL", printed).wait()
    left = parts_of(out)
    given = words(model, out, "--steps 2 --jobs 1 --resume")
    assert "was made by another command (inspector record --model" in refused(capsys, 2, *given)

    recording = parts.folder_of(out) / "outside" / "recording.json"
    before = recording.read_text()
    digest = json.loads(before)["provenance"]["model"]["weights_sha256"]
    recording.write_text(before.replace(digest, "0" * 64))
    given = words(model, out, "--steps 1 --jobs 1 --resume")
    error = refused(capsys, 3, *given)
    assert f"model.weights_sha256 is '{'0' * 64}', that of " in error and digest in error
    assert left.keys() <= parts_of(out).keys() and not out.exists()
    recording.write_text(before)
    assert cli.main(given) == 0
    require_same(out, whole)


def test_with_nothing_to_resume_it_begins_or_says_that_it_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, options in (("one", ""), ("parts", " --jobs 1")):
        given = words("tiny:llama", tmp_path / name, f"--effort none{options}")
        assert cli.main([*given, "--resume"]) == 0
        assert "nothing to resume for " in capsys.readouterr().out
        before = files(tmp_path / name)
        assert cli.main([*given, "--resume"]) == 0
        assert "is finished; --overwrite instead of --resume" in capsys.readouterr().out
        assert "was made by another command" in refused(capsys, 2, *given, "--resume", "--force")
        assert files(tmp_path / name) == before


DYING = """
import os, signal, sys
if "--started-by" in sys.argv:
    {}
"""
DEATHS = {
    "it says why": (r"os.write(2, b'a line\nno luck today\n'); os._exit(7)",
                    "exit code 7: no luck today"),
    "it is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9: it said nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("by", "expected"), DEATHS.values(), ids=DEATHS)
def test_the_parts_of_a_process_that_dies_are_made_by_the_others(
    by: str, expected: str, model: Path, whole: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(DYING.format(by))
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    out = recorded(model, tmp_path / "out" / "x", RUN)
    assert f"a process ended with {expected}; others make its parts" in capsys.readouterr().err
    require_same(out, whole)
    assert names(tmp_path / "out") == ["x"]


def others_of(process: int) -> list[int]:
    """Those that a process has started."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in found.split()]


def is_gone(process: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_no_process_is_left_over(by: int, model: Path, tmp_path: Path, printed: Path) -> None:
    """While the first one waits with its first part, so that none is done."""
    command = started(words(model, tmp_path / "x", "--steps 3 --jobs 3"), 0, "SIGSTOP", printed)
    wait_until(lambda: command.stdout.endswith("stopped\n") or command.returncode is not None)
    assert command.returncode is None, command.stderr
    others = others_of(command.pid)
    assert len(others) == 2 and not any(map(is_gone, others))
    command.send_signal(by)
    command.send_signal(signal.SIGCONT)
    command.wait()
    assert command.returncode == (130 if by == signal.SIGINT else -by)
    wait_until(lambda: all(map(is_gone, others)))
    assert not (tmp_path / "x").exists()


def test_a_recording_that_another_command_makes_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with parts.alone(tmp_path / "x"):
        for options in ("", "--jobs 1", "--jobs 2 --resume"):
            given = words("tiny:llama", tmp_path / "x", options)
            text = f"{tmp_path / 'x'} is being recorded by a process that still runs: wait for it"
            assert text in refused(capsys, 3, *given)
    assert names(tmp_path) == []


def test_the_lock_of_a_command_that_was_killed_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / ".x.lock").touch()
    with parts.alone(tmp_path / "x"):
        assert names(tmp_path) == [".x.lock"]
        with pytest.raises(ProcessError, match="still runs"), parts.alone(tmp_path / "x"):
            pass
        with parts.alone(tmp_path / "y"):
            pass
    assert names(tmp_path) == []


def test_what_others_make_or_have_made_is_passed_over(tmp_path: Path) -> None:
    every, made = parts.parts_of(range(4)), []
    complete = tmp_path / every[3].name
    complete.mkdir()
    (complete / "recording.json").touch()
    with parts.locked(tmp_path / every[1].name):
        parts.make(every, tmp_path, lambda part, path: made.append((part, path.name)))
    assert made == [(part, part.name) for part in (every[0], every[2], every[4])]


def test_modules_are_found_as_the_first_process_finds_them(model: Path, tmp_path: Path) -> None:
    (tmp_path / "inspect.py").write_text("raise SystemExit('of the folder it was started in')")
    code = (
        "import sys; sys.path[0] = '/none'; "
        "from plumbline.inspector.cli import inspector; inspector.main()"
    )
    given = words(model, tmp_path / "x", "--effort none --jobs 2")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *given], cwd=tmp_path, capture_output=True, text=True
    )
    assert (tmp_path / "x" / "outside").exists(), done.stderr
    assert "a process ended with" not in done.stderr


STARTING = """
import subprocess, sys
class Started(Exception): pass
def start(*_, **__):
    heavy = {"torch", "transformers", "numpy"} & set(sys.modules)
    assert not heavy, heavy
    raise Started
subprocess.Popen = start
from python_inspector.cli import inspector as cli
cli.main(["--debug", *sys.argv[1:]])
"""


def test_nothing_heavy_is_imported_before_the_others_start(tmp_path: Path) -> None:
    given = words("tiny:llama", tmp_path / "x", "--jobs 2")
    done = subprocess.run([sys.executable, "-c", STARTING, *given], capture_output=True, text=True)
    assert done.stderr.strip().endswith("Started"), done.stderr
