"""What a recording that broke off says of what is left, and of what stood in its way."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from test_resume import RECORD, Killed, at_once, fill_disk, killed_at, run, stop  # noqa: F401

from python_inspector.cli import inspector as cli

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")


def test_a_full_disk_is_named_with_what_it_has_and_what_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch, payloads=90)
    assert cli.main([*RECORD.split(), "--out", str(tmp_path / "x")]) == 3
    partial = tmp_path / f".x.partial-{os.getpid()}"
    said = capsys.readouterr().err
    found = re.search(
        rf"No space left on device: '{partial}'; {partial} holds (\d+) bytes, its disk has (\d+) "
        rf"free; (\d+) finished checkpoints are kept in {partial}: free space, then the same "
        r"command with --resume goes on from there, without it begins anew; the whole recording "
        r"needs about (\d+) bytes while it is written: free what is missing",
        said,
    )
    assert found, said
    holds, free, finished, needed = map(int, found.groups())
    assert holds > 0 and finished > 20 and needed > holds
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, abs=1 << 30)


def test_a_full_disk_before_anything_is_finished_is_named_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch, payloads=0)
    assert cli.main([*RECORD.split(), "--out", str(tmp_path / "x")]) == 3
    said = capsys.readouterr().err
    assert re.search(r"partial-\d+ holds \d+ bytes, its disk has \d+ free; the whole rec", said)
    assert "kept" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("gone", ["", ".journal", ".payloads"])
def test_what_was_removed_meanwhile_is_not_called_kept(tmp_path: Path, gone: str) -> None:
    partial = tmp_path / f".x.partial-{os.getpid()}"

    def remove() -> None:
        if gone:
            (partial / gone).unlink()
        else:
            shutil.rmtree(partial)
        stop()

    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 30, remove)
        with pytest.raises(Killed) as raised:
            run(tmp_path / "x", resumable=True)
    (note,) = raised.value.__notes__
    assert note.startswith(f"30 checkpoints were finished, but {partial / gone} was removed mean")
    assert "are kept" not in note and "the same command records from the beginning" in note
    assert list(tmp_path.iterdir()) == []


def test_a_recording_whose_folder_was_removed_says_so_at_its_end(tmp_path: Path) -> None:
    partial = tmp_path / f".x.partial-{os.getpid()}"
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 30, lambda: shutil.rmtree(partial))
        with pytest.raises(FileNotFoundError) as raised:
            run(tmp_path / "x", resumable=True)
    assert f"but {partial} was removed meanwhile" in raised.value.__notes__[0]
