"""What a process does with memory that is freed: C's heap, CUDA's, and Python's collector."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LARGEST = (1 << 31) - 1
_LARGE = 1 << 28
_THRESHOLDS = 5000, 20, 50


def keep_freed_memory() -> None:
    """Freed memory stays with the process, but for allocations of 256 MB and more.

    glibc gives every tensor of some size pages of its own and returns them with it: where millions
    of tensors come and go, the kernel clears tens of gigabytes of pages that were there already.
    Does nothing where the C library has no mallopt.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, macOS, musl
        return
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, _LARGEST)


def share_device() -> None:
    """torch takes a GPU's memory page by page: its cache has fewer gaps, which other processes
    cannot use. Does nothing where PYTORCH_ALLOC_CONF is set, or where torch was imported."""
    if sys.platform == "linux" and "torch" not in sys.modules:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


@contextmanager
def lasting_imports() -> Iterator[None]:
    """What is imported inside is never looked through for garbage.

    torch and transformers make a million objects that stay: the collector looks through them
    again and again while they come, and later with every full collection. Does nothing where they
    are there: then there may be garbage, too.
    """
    if not gc.isenabled() or "transformers" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def rarely_collect() -> None:
    """A seventh of a recording's Python is otherwise the search for garbage among what stays."""
    gc.set_threshold(*_THRESHOLDS)
