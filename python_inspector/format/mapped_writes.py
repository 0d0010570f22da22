"""Large writes to one file by several threads at once.

A file system lets one thread at a time write to a file; where several processes' recordings are
joined, that took longer than anything else. To mapped pages of it all threads write at once.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

import numpy as np

from .payload import write_all


def write_mapped(file: int, data: memoryview, offset: int) -> None:
    """As write_all at `offset`; by that where the file system cannot reserve room or map pages."""
    data = data.cast("B")
    begin = offset - offset % mmap.ALLOCATIONGRANULARITY
    pages = None
    if data.nbytes and _reserve(file, offset, data.nbytes):
        with suppress(OSError):
            pages = mmap.mmap(file, offset + data.nbytes - begin, offset=begin)
    if pages is None:
        write_all(file, data, offset)  # whose error says what is wrong, such as a full disk
        return
    with pages:
        place = np.frombuffer(pages, np.uint8)[offset - begin :]
        np.copyto(place, np.frombuffer(data, np.uint8))  # lets other threads run
        del place


def _reserve(file: int, offset: int, size: int) -> bool:
    """Whether the disk has room for so many bytes there, and keeps it: on a full disk, a write to a
    mapped page is a signal that ends the process.

    Not posix_fallocate, which writes every block itself where the file system cannot reserve.
    """
    try:
        fallocate = ctypes.CDLL(None).fallocate
    except (OSError, TypeError, AttributeError):  # Windows, macOS
        return False
    return bool(fallocate(file, 0, ctypes.c_int64(offset), ctypes.c_int64(size)) == 0)
