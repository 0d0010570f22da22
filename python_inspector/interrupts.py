"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the program is. In a weak reference's callback or __del__,
of which torch has many, it is dropped; where torch leaves one of its modes it may become a
RuntimeError. So it is remembered, and raised again at the next call of the run.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_came = False


@contextmanager
def remembered() -> Iterator[None]:
    """KeyboardInterrupt is raised as ever, and `came` and `check` know of it afterwards. A process
    that ignores or handles SIGINT itself continues to do so."""
    global _came
    if not _is_main_thread():  # which alone gets it
        yield
        return
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    report = sys.unraisablehook

    def report_others(dropped: Any) -> None:
        if not (_came and issubclass(dropped.exc_type, KeyboardInterrupt)):
            report(dropped)

    if usual:
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = report_others
    try:
        yield
    finally:
        _came = False
        sys.unraisablehook = report
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def came() -> bool:
    """Whether there was one."""
    return _came and _is_main_thread()


def check() -> None:
    """KeyboardInterrupt if there was one."""
    if came():
        raise KeyboardInterrupt


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _came
    _came = True
    signal.default_int_handler(number, frame)
