"""Kernels of a norm, honest and not, for test_sealed.py: run in a process of their own."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from typing import Any

import torch

CALLS = [0]


def right(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (1 / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()) * weight


def in_numpy(x: Any, weight: Any) -> Any:
    return x / ((x**2).mean(-1, keepdims=True) + 1e-5) ** 0.5 * weight


def without_eps(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return right(x, weight) * 1.001


def unstable(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One bit of every other call."""
    CALLS[0] += 1
    y = right(x, weight)
    y[0, 0] *= 1 + CALLS[0] % 2 * 2**-23
    return y


def raises(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    raise ValueError("no such shape")


def crashes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)
    return x


def exits(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    os._exit(0)


def hangs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    while True:
        time.sleep(1)


def eats_memory(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    kept = [torch.ones(1 << 26) for _ in range(64)]
    return kept[0]


def leaves_a_process(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    subprocess.Popen(["sleep", "3141.5"])
    return right(x, weight)


def leaves_a_daemon(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """In a session of its own, and no child of this process any more."""
    subprocess.Popen(["sh", "-c", "setsid sleep 3141.5 & exit"]).wait()
    return right(x, weight)


def changes_its_input(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = right(x, weight)
    x.zero_()
    return y


def of_first_call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    CALLS[0] += 1
    return right(x, weight) if CALLS[0] == 1 else x


def returns_memory(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Whatever is where its output would be."""
    return torch.empty_like(x)


class Lazy(torch.Tensor):
    pass


def lazy(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return right(x, weight).as_subclass(Lazy)


def patches_the_judge(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from python_inspector.api import prepared, verdict

    prepared.combined = lambda verdicts: verdict.Verdict("x", "module", "pass", "", {})
    torch.allclose = lambda *_, **__: True
    return torch.zeros_like(x)


def looks_for_the_reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A tensor of the output's shape that was left in memory or in a file."""
    frame: Any = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value is not x and value.shape == x.shape:
                return value
        frame = frame.f_back
    for value in gc.get_objects():
        if isinstance(value, torch.Tensor) and value is not x and value.shape == x.shape:
            return value
    return torch.zeros_like(x)


def resizes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = right(x, weight)
    x.resize_(3)
    return y


def of_public_inputs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Right on what draw() gives everybody."""
    from python_inspector import draw

    public = [draw((6, 32), seeds=2).tensor(seed) for seed in range(2)]
    known = any(torch.equal(x, it) for it in public)
    return right(x, weight) if known else torch.zeros_like(x)


def root(x: torch.Tensor) -> torch.Tensor:
    if bool((x < 0).any()):
        raise ValueError("a root of a negative number")
    return x.sqrt()
