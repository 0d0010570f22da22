"""Folders that are either complete or not there."""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..errors import FormatError


def in_memory() -> str | None:
    """A folder that is no disk, for files that are read at once; None: the system's own choice."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def is_full_disk(error: BaseException) -> bool:
    """Whether it says that the disk, or what one may have of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def name_full_disk(error: BaseException, partial: Path) -> None:
    """Of a full disk, an error names the folder that was written, and what has room where."""
    if not isinstance(error, OSError) or not is_full_disk(error):
        return
    with suppress(OSError):  # the folder may be gone, too
        free = shutil.disk_usage(partial.parent).free
        error.filename = error.filename or str(partial)
        error.add_note(f"{partial} held {disk_bytes([partial])} bytes, its disk has {free} free")


def partials(out: Path) -> list[Path]:
    """The folders next to `out` that it was or is being recorded in."""
    return sorted(out.parent.glob(f".{glob.escape(out.name)}.partial-*"))


def sweep(out: Path) -> None:
    """Clears what a killed process left next to `out`; a recording it moved away returns."""
    for path in left_by_the_dead(partials(out)):
        shutil.rmtree(path, ignore_errors=True)
    for path in left_by_the_dead(out.parent.glob(f".{glob.escape(out.name)}.old-*")):
        if out.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.rename(out)


def leftover_bytes(out: Path) -> int:
    """On the disk, of recordings of `out` that were killed, which the next one clears."""
    return disk_bytes(left_by_the_dead(partials(out)))


def require_place(out: Path, weights_path: Path, recording: str) -> None:
    """FormatError where nothing may be put at `out`, or no weights at `weights_path`; `recording`:
    the file by which a folder is known as one."""
    if weights_path.parent not in (out, out.parent):
        raise FormatError(f"weights file {weights_path} must be in {out} or in {out.parent}")
    if out.exists() and not out.is_dir():
        raise FormatError(f"{out} exists and is no folder")
    if out.is_dir() and any(out.iterdir()) and not (out / recording).is_file():
        raise FormatError(f"{out} exists and is no recording; choose another folder")


def disk_bytes(folders: Iterable[Path]) -> int:
    """On the disk, of the files in folders."""
    files = (file for path in folders for file in path.iterdir())
    return sum(file.stat().st_blocks * 512 for file in files)


def left_by_the_dead(paths: Iterable[Path]) -> list[Path]:
    """Those of processes that are no more, or of this one, by the number at the end."""
    found = []
    for path in paths:
        number = path.name.rpartition("-")[2]
        if number.isdigit() and (int(number) == os.getpid() or not _is_running(int(number))):
            found.append(path)
    return found


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def replace_folder(partial: Path, out: Path) -> None:
    """Puts the folder `partial` at `out`; what was there is gone only after that succeeded."""
    if not out.exists():
        partial.rename(out)
        return
    old = out.parent / f".{out.name}.old-{os.getpid()}"
    out.rename(old)
    try:
        partial.rename(out)
    except BaseException:
        old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
