"""Ctrl-C where Python or torch loses it: the recording ends all the same."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cli import refused

from python_inspector import interrupts
from python_inspector.cli import inspector as cli
from python_inspector.recorder.checkpoints import Checkpoints
from python_inspector.trace import reruns

pytestmark = [
    pytest.mark.filterwarnings("error"),  # what is dropped and reported would be a warning
    pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning"),
]

WORDS = ("record", "--model", "tiny:llama", "--tokens", "5", "--effort", "fast")


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
    whole, made = Checkpoints.add, []

    def add(*given: Any, **options: Any) -> None:
        made.append(given)
        if len(made) == 7:
            before()
        whole(*given, **options)
        if len(made) == 7:
            after()

    words = (*WORDS, "--out", str(tmp_path / "x"))
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "add", add)
        assert "interrupted; " in refused(capsys, cli.INTERRUPTED, *words)
    assert len(made) <= 8  # nothing is made after it
    assert not list(tmp_path.iterdir())


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert cli.main([*WORDS, "--out", str(tmp_path / "x")]) == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_what_it_spoils_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where code of no block is repeated for its oracle, whatever goes wrong is a warning."""
    words = ("record", "--model", "tiny:gpt2", "--tokens", "5", "--effort", "fast")
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
    assert not list(tmp_path.iterdir())


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


def test_a_handler_that_is_not_pythons_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _: None)  # as where C has installed it
    assert cli.main(["tiny"]) == 0
