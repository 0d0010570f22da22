"""What a recording that broke off leaves behind, and what its error says of that."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

from .folders import disk_bytes
from .journal import JOURNAL
from .tensor_table import TENSOR_SPOOL

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full_disk(error: BaseException) -> bool:
    """Whether it says that the disk, or what one may have of it, is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def name_full_disk(error: BaseException, partial: Path) -> None:
    """Of a full disk, an error names the folder that was written, and what has room where."""
    if not isinstance(error, OSError) or not is_full_disk(error):
        return
    with suppress(OSError):  # the folder may be gone, too
        free = shutil.disk_usage(partial.parent).free
        error.filename = error.filename or str(partial)
        error.add_note(f"{partial} holds {disk_bytes([partial])} bytes, its disk has {free} free")


def lost(partial: Path, tensors: str) -> Path | None:
    """Of what a run needs to go on, what is not there any more; `tensors`: the finished file."""
    if not partial.is_dir():
        return partial
    if not (partial / JOURNAL).exists():
        return partial / JOURNAL
    spool = partial / TENSOR_SPOOL
    return None if spool.exists() or (partial / tensors).exists() else spool


def what_is_kept(checkpoints: int, partial: Path, *, full: bool) -> str:
    """Where a run can go on, after the disk was `full` or something else."""
    first = "free space, then " if full else ""
    return (
        f"{checkpoints} finished checkpoints are kept in {partial}: {first}the same command with "
        "--resume goes on from there, without it begins anew"
    )


def what_is_lost(checkpoints: int, missing: Path) -> str:
    """Where none can."""
    return (
        f"{checkpoints} checkpoints were finished, but {missing} was removed meanwhile, so none is "
        "kept: the same command records from the beginning; leave its folder alone until it is done"
    )
