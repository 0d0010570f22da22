"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the program is. Where that is a callback of the garbage
collector, of which torch has many, it is dropped; where torch leaves one of its modes, it
may become a RuntimeError. So it is remembered, and raised again where a run gets to next.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_came = False


@contextmanager
def remembered() -> Iterator[None]:
    """KeyboardInterrupt is raised as ever, and `came` and `check` know of it. What the process does
    not leave to Python, because it ignores or handles it otherwise, stays so."""
    global _came
    _came = False
    before, report = signal.getsignal(signal.SIGINT), sys.unraisablehook
    if threading.current_thread() is not threading.main_thread():  # which alone gets it
        yield
        return
    if before is signal.default_int_handler:
        obey()
    sys.unraisablehook = lambda dropped: _came or report(dropped)
    try:
        yield
    finally:
        sys.unraisablehook = report
        signal.signal(signal.SIGINT, before)


def obey() -> None:
    """Also in a process that was started with it ignored, as a shell's job in the background."""
    signal.signal(signal.SIGINT, _interrupt)


def came() -> bool:
    """Whether there was one."""
    return _came


def check() -> None:
    """KeyboardInterrupt if there was one."""
    if _came:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _came
    _came = True
    signal.default_int_handler(number, frame)
