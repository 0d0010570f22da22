"""Kernels of a norm, honest and not, for test_sealed_times.py: timed in a process of their own."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CALLS = [0]
KEPT: dict[Any, Tensor] = {}
KNOWN: list[Tensor] = []


def right(x: Tensor, weight: Tensor) -> Tensor:
    return x * (1 / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()) * weight


def wrong(x: Tensor, weight: Tensor) -> Tensor:
    return right(x, weight) * 1.001


def in_place(x: Tensor, weight: Tensor) -> None:
    x.copy_(right(x, weight))


def stops_clocks(x: Tensor, weight: Tensor) -> Tensor:
    """Those that Python code can replace."""
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "time", "process_time"):
        setattr(time, name, lambda: 0)
    torch.cuda.Event = torch.cuda.synchronize = lambda *_, **__: None  # type: ignore[assignment, misc]
    return right(x, weight)


def replaces_the_clock(x: Tensor, weight: Tensor) -> Tensor:
    """That of the process, found among its objects."""
    for it in gc.get_objects():
        if type(it).__name__ == "Clock":
            it._now, it._elapsed = lambda: 0.0, lambda *_: 1e-9
    return right(x, weight)


def answers() -> int:
    """The descriptor on which the judge is answered; CUDA has pipes of its own."""
    if torch.cuda.is_initialized():
        return int(sys.argv[2])
    pipes = (int(it.name) for it in Path("/proc/self/fd").iterdir() if it.is_fifo())
    return next(number for number in pipes if number > 2)


def writes_answers(x: Tensor, weight: Tensor) -> Tensor:
    os.write(answers(), b'"ended"\n')
    return right(x, weight)


def writes_times(x: Tensor, weight: Tensor) -> Tensor:
    os.write(answers(), b'[1e-9, "\x1b[2J pass"]\n[]\n')
    return right(x, weight)


def closes_descriptors(x: Tensor, weight: Tensor) -> Tensor:
    os.closerange(3, 256)
    return right(x, weight)


def reads_questions(x: Tensor, weight: Tensor) -> Tensor:
    os.close(0)
    return right(x, weight)


def cached_by_pointer(x: Tensor, weight: Tensor) -> Tensor:
    return _kept((x.data_ptr(), weight.data_ptr()), x, weight)


def cached_by_place(x: Tensor, weight: Tensor) -> Tensor:
    """The signs of the values, which stay."""
    return _kept(tuple((x > 0).flatten().tolist()), x, weight)


def _kept(key: Any, x: Tensor, weight: Tensor) -> Tensor:
    if key not in KEPT:
        KEPT[key] = right(x, weight)
    return KEPT[key]


def of_first_calls(x: Tensor, weight: Tensor) -> Tensor:
    CALLS[0] += 1
    return right(x, weight) if CALLS[0] <= 2 else torch.zeros_like(x)


def of_known_values(x: Tensor, weight: Tensor) -> Tensor:
    """Those of the first calls."""
    CALLS[0] += 1
    if CALLS[0] <= 2:
        KNOWN.append(x.clone())
    known = any(torch.equal(x, it) for it in KNOWN)
    return right(x, weight) if known else torch.zeros_like(x)


def late(x: Tensor, weight: Tensor) -> Tensor:
    """The values come once the clock has been stopped."""
    CALLS[0] += 1
    if CALLS[0] <= 2:
        return right(x, weight)
    y, x = torch.zeros_like(x), x.clone()

    def fill() -> None:
        time.sleep(1)
        y.copy_(right(x, weight))

    threading.Thread(target=fill, daemon=True).start()
    return y
