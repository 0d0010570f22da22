"""Ctrl-C where Python or torch loses it: the recording ends all the same, to be resumed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cli import refused

from python_inspector import cli
from python_inspector.recorder.resume import Resume

pytestmark = pytest.mark.filterwarnings("error")  # as of what is dropped

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


def dropped() -> None:
    Collected()


def replaced() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise RuntimeError("trying to pop from empty mode stack") from None


@pytest.mark.parametrize("interrupted", [dropped, replaced])
def test_it_ends_the_recording(
    interrupted: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    whole, made = Resume.finish, []

    def finish(*given: Any) -> Any:
        made.append(given)
        if len(made) == 7:
            interrupted()
        return whole(*given)

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


def test_the_handler_is_put_back() -> None:
    assert cli.main(["tiny"]) == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
