"""Folders of a process, in memory where there is room for that, which do not outlive it.

A process that is killed removes nothing. Each folder is locked by its process, and the first one
that another process makes removes those that no process locks any more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from .folders import in_memory

PREFIX = "plumbline-held-"
_NEW = 60.0
"""Seconds in which a folder may still be without its lock."""
_locks: dict[Path, int] = {}
_swept: set[Path] = set()


def make() -> Path:
    """A new folder, for drop() to remove."""
    base = Path(in_memory() or tempfile.gettempdir())
    if base not in _swept:
        _swept.add(base)
        _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base)).resolve()
    lock = _locked(folder)
    if lock is not None:
        _locks[folder] = lock
    return folder


def drop(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if (lock := _locks.pop(folder, None)) is not None:
        os.close(lock)


def _sweep(base: Path) -> None:
    for folder in base.glob(f"{PREFIX}*"):
        try:
            its = folder.lstat()
        except OSError:  # its process has removed it
            continue
        if its.st_uid != os.getuid() or time.time() - its.st_mtime < _NEW:
            continue
        if (lock := _locked(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """The folder, which is this process's now; None where it is another's or cannot be locked."""
    file = None
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if file is not None:
            os.close(file)
        return None
    return file
