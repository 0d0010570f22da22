"""Ctrl-C where Python or torch loses it: the recording ends all the same, to be resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cli import refused

from python_inspector import interrupts
from python_inspector.cases import processes
from python_inspector.cli import inspector as cli
from python_inspector.recorder.resume import Resume
from python_inspector.trace import reruns

pytestmark = [
    pytest.mark.filterwarnings("error"),  # what is dropped and reported would be a warning
    pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning"),
]

WORDS = ("record", "--model", "tiny:llama", "--tokens", "5", "--spread", "2", "--no-bugs")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """As in a terminal, though a job in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Collected:
    """Python drops what is raised in here."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


class Failing:
    def __del__(self) -> None:
        raise OSError("something else")


def dropped() -> None:
    Collected()


def replaced() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise RuntimeError("trying to pop from empty mode stack") from None


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("before", "after"), [(dropped, nothing), (replaced, nothing), (nothing, dropped)]
)
def test_it_ends_the_recording(
    before: Any, after: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Before a checkpoint is finished, and after that."""
    whole, made = Resume.finish, []

    def finish(*given: Any) -> Any:
        made.append(given)
        if len(made) != 7:
            return whole(*given)
        before()
        finished = whole(*given)
        after()
        return finished

    words = (*WORDS, "--out", str(tmp_path / "x"))
    with monkeypatch.context() as patch:
        patch.setattr(Resume, "finish", finish)
        assert "interrupted; " in refused(capsys, cli.INTERRUPTED, *words)
    assert len(made) == 7  # nothing is made after it
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".x.partial-")
    assert cli.main([*words, "--resume"]) == 0
    assert " taken over), " in capsys.readouterr().out


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert cli.main([*WORDS, "--out", str(tmp_path / "x")]) == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_what_it_spoils_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where code of no block is repeated for its oracle, whatever goes wrong is a warning."""
    words = ("record", "--model", "tiny:gpt2", "--tokens", "5", "--spread", "2", "--no-bugs")
    assert cli.main([*words, "--out", str(tmp_path / "whole"), "--name", "a/b"]) == 0
    run, calls = reruns._lifted, []

    def lifted(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 7:
            replaced()
        return run(*given)

    given = [*words, "--out", str(tmp_path / "x"), "--name", "a/b"]
    with monkeypatch.context() as patch:
        patch.setattr(reruns, "_lifted", lifted)
        assert cli.main(given) == cli.INTERRUPTED
    assert cli.main([*given, "--resume"]) == 0
    whole, resumed = (
        json.loads((tmp_path / name / "recording.json").read_text()) for name in ("whole", "x")
    )
    assert resumed["checkpoints"] == whole["checkpoints"]
    assert resumed["provenance"]["warnings"] == whole["provenance"]["warnings"]


def test_it_is_over_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    with pytest.raises(KeyboardInterrupt), interrupts.remembered():
        dropped()
        assert interrupts.came() and not reported
        Failing()
        assert [other.exc_type for other in reported] == [OSError]
        interrupts.check()
    assert not interrupts.came()
    assert sys.unraisablehook == reported.append
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_is_lost_while_others_are_waited_for() -> None:
    with interrupts.remembered(), subprocess.Popen(["sleep", "60"]) as process:
        dropped()
        with pytest.raises(KeyboardInterrupt):
            processes._wait(process)
        process.kill()


def test_a_handler_that_is_not_pythons_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _: None)  # as where C has installed it
    assert cli.main(["tiny"]) == 0
