"""What a process does with memory that is freed: C's heap."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LARGEST = (1 << 31) - 1
_LARGE = 1 << 28


def keep_freed_memory() -> None:
    """Freed memory stays with the process, but for allocations of 256 MB and more.

    glibc gives every tensor of some size pages of its own and returns them with it: where millions
    of tensors come and go, the kernel clears tens of gigabytes of pages that were there already (of
    two layers of Llama-3.2-1B, 26 s of 103). Does nothing where the C library has no mallopt.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, macOS, musl
        return
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, _LARGEST)
