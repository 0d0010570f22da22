"""How much memory the reruns of a call may take, where that is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

WIDE = 8
"""Bytes of a number in float64."""
OF_A_STACK = 16
"""A float64 stack of samples is one in so many parts: seven of its size are there at once, and
operands and results need memory, too."""

_room: ContextVar[int | None] = ContextVar("plumbline_room", default=None)


@contextmanager
def bounded(bytes: int | None) -> Iterator[None]:
    """Reruns inside take so much at most, if they can; None: whatever is there."""
    token = _room.set(bytes)
    try:
        yield
    finally:
        _room.reset(token)


def stack_elements(otherwise: int) -> int:
    """Elements that a stack may have."""
    most = room()
    return otherwise if most is None else max(1, min(otherwise, most // (WIDE * OF_A_STACK)))


def room() -> int | None:
    """What it is at the moment."""
    return _room.get()
