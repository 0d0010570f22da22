"""What a recording that broke off says of the reason, and of what is left."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from python_inspector.cli import inspector as cli

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")
RECORD = (
    "record --model tiny:llama-a1 --dtype bf16 --tokens 9 --steps 1 --effort fast --name test/run"
)


def fill_disk(patch: pytest.MonkeyPatch, payloads: int) -> None:
    """It is full after so many."""
    real, written = os.pwrite, 0

    def full(*args: Any) -> int:
        nonlocal written
        written += 1
        if written > payloads:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    patch.setattr(os, "pwrite", full)


def test_a_full_disk_is_named_with_what_it_has_and_what_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch, payloads=90)
    assert cli.main([*RECORD.split(), "--out", str(tmp_path / "x")]) == 3
    partial = tmp_path / f".x.partial-{os.getpid()}"
    said = capsys.readouterr().err
    found = re.search(
        rf"No space left on device: '{partial}'; {partial} held (\d+) bytes, its disk has (\d+) "
        r"free; the whole recording needs about (\d+) bytes while it is written: free what is",
        said,
    )
    assert found, said
    held, free, needed = map(int, found.groups())
    assert 0 < held < needed
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, abs=1 << 30)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_complete_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*RECORD.split(), "--jobs", "1", "--out", str(tmp_path / "x")]
    with monkeypatch.context() as patch:
        fill_disk(patch, payloads=90)
        assert cli.main(words) == 3
    said = capsys.readouterr().err
    found = re.search(r"; (\d) complete parts stay in \S+x\.parts for --resume", said)
    assert found and found[1] in "123", said
    assert cli.main([*words, "--resume"]) == 0
    assert f"resuming: {found[1]} parts are complete in " in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_recording_whose_folder_was_removed_says_so_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from python_inspector.recorder.recorder import Recorder

    partial, settle = tmp_path / f".x.partial-{os.getpid()}", Recorder.settle

    def removed(self: Recorder) -> None:
        settle(self)
        shutil.rmtree(partial)

    monkeypatch.setattr(Recorder, "settle", removed)
    assert cli.main([*RECORD.split(), "--out", str(tmp_path / "x")]) == 3
    assert f"No such file or directory: '{partial}/tensors.saf" in capsys.readouterr().err
