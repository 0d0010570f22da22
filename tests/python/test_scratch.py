"""Folders in memory that do not outlive their process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from python_inspector.format import scratch

MAKES = """
from python_inspector.format import scratch
scratch.in_memory = lambda: {base!r}
print(scratch.make(), flush=True)
input()
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders are made, of any age, by processes that have made none."""
    monkeypatch.setattr(scratch, "in_memory", lambda: str(tmp_path))
    monkeypatch.setattr(scratch, "_swept", set())
    monkeypatch.setattr(scratch, "_NEW", -60.0)
    return tmp_path


def process(base: Path) -> tuple[subprocess.Popen[str], Path]:
    code = textwrap.dedent(MAKES.format(base=str(base)))
    pipe = subprocess.PIPE
    made = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
    assert made.stdout is not None
    return made, Path(made.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_by_the_next(base: Path) -> None:
    killed, left = process(base)
    alive, stays = process(base)
    (left / "file").write_text("x")
    killed.kill()
    killed.wait()
    assert left.is_dir()
    mine = scratch.make()
    assert not left.exists()
    assert stays.is_dir(), "its process lives"
    alive.communicate("\n")
    scratch.drop(mine)
    assert [it for it in base.iterdir() if it != stays] == []


def test_a_new_folder_may_have_no_lock_yet(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_NEW", 60.0)
    new = base / f"{scratch.PREFIX}new"
    new.mkdir()
    scratch.drop(scratch.make())
    assert new.is_dir()


def test_nothing_else_is_removed(base: Path) -> None:
    elsewhere = base / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (base / f"{scratch.PREFIX}link").symlink_to(elsewhere)
    (base / f"{scratch.PREFIX}file").touch()
    scratch.drop(scratch.make())
    assert (elsewhere / "file").is_file()
    assert (base / f"{scratch.PREFIX}file").is_file()


def test_a_folder_goes_with_its_lock(base: Path) -> None:
    folder = scratch.make()
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    scratch.drop(folder)
    assert not folder.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files - 1
    scratch.drop(folder)  # again is nothing
