"""Folders that are either complete or not there."""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path


def sweep(out: Path) -> None:
    """Clears what a killed process left beside `out`; a recording it moved away returns."""
    for kind in ("partial", "old"):
        for path in out.parent.glob(f".{glob.escape(out.name)}.{kind}-*"):
            number = path.name.rpartition("-")[2]
            if number.isdigit() and (int(number) == os.getpid() or not _is_running(int(number))):
                if kind == "old" and not out.exists():
                    path.rename(out)
                else:
                    shutil.rmtree(path, ignore_errors=True)


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
