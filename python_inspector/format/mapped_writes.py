"""Large writes to one file by several threads at once.

A file system lets one thread at a time write to a file, which takes longer than anything else where
memory is new to the machine. To pages of it that are mapped all threads may write.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from python_inspector.format.payload import write_all


def write_mapped(file: int, data: memoryview, offset: int) -> None:
    """As write_all, at `offset`; by that where a file system has no room to promise."""
    data = data.cast("B")
    if not data.nbytes or not _has_room(file, offset, data.nbytes):
        write_all(file, data, offset)  # which says why it cannot
        return
    begin = offset - offset % mmap.ALLOCATIONGRANULARITY
    with mmap.mmap(file, offset + data.nbytes - begin, offset=begin) as pages:
        place = np.frombuffer(pages, np.uint8)[offset - begin :]
        np.copyto(place, np.frombuffer(data, np.uint8))  # lets other threads run
        del place


def _has_room(file: int, offset: int, size: int) -> bool:
    """Whether so many bytes are there and on the disk, so that writing to them cannot fail: with
    pages of a file that would be a signal. Not posix_fallocate, which writes them where a file
    system cannot promise them."""
    try:
        fallocate = ctypes.CDLL(None).fallocate
    except (OSError, TypeError, AttributeError):  # Windows, macOS
        return False
    return bool(fallocate(file, 0, ctypes.c_int64(offset), ctypes.c_int64(size)) == 0)
