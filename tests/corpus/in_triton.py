"""Triton's kernels of tests/python, on a GPU or in Triton's interpreter (of float16, not of
bfloat16: to that it truncates)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.python.triton_kernels import CASES

from .rows import Call, Kernel, Problem, Tensor, Values


def _turns(v: Values) -> tuple[Tensor, Tensor, Tensor]:
    angles = torch.arange(9)[:, None] * 10000.0 ** (-torch.arange(16) / 16)
    cos, sin = (it.to(v.dtype).to(v.device) for it in (angles.cos(), angles.sin()))
    return v(4, 9, 32), cos, sin


OPERANDS: dict[str, Callable[[Values], tuple[Any, ...]]] = {
    "rms_norm": lambda v: (v(5, 3, 70), v.about_one(70)),
    "softmax": lambda v: (v(12, 70, scale=3.0),),
    "gemm": lambda v: (v(20, 200), v(200, 24)),
    "attention": lambda v: (v(1, 6, 37, 16), v(1, 3, 37, 16), v(1, 3, 37, 16)),
    "rotary": _turns,
}
FAULTS = {
    "rms_norm": (
        ("tail", "tail"),
        ("epsilon", "eps outside the root"),
        ("constant", "divided by the block"),
        ("precision", "squares in 16 bits", "", "f32"),
    ),
    "softmax": (
        ("tail", "last column"),
        ("tail", "padding of zeros"),
        ("left out", "no maximum"),
        ("precision", "exponents in 16 bits", "", "f32"),
    ),
    "gemm": (
        ("tail", "tail of k"),
        ("precision", "accumulator in 16 bits"),
        ("stale", "last block of k alone"),
        ("precision", "operands in 16 bits", "", "f32"),
    ),
    "attention": (
        ("mask", "causal off by one"),
        ("index", "kv head"),
        ("stale", "sums not rescaled"),
        ("stale", "total not rescaled"),
    ),
    "rotary": (
        ("index", "neighbours are pairs"),
        ("tail", "last dimension unrotated", "", "f32"),
        ("formula", "turned the other way"),
        ("stale", "second half of the turned first"),
    ),
}


def _with(kernel: Call, fault: str) -> Call:
    return lambda *args: kernel(*args, wrong=fault)


def rows() -> Iterator[Kernel]:
    for name, case in CASES.items():
        problem = Problem(f"{name} in Triton", case.like, OPERANDS[name], ("f32", "f16"))
        yield from problem.right(("as in its tutorials", case.kernel))
        yield from problem.wrong(
            *((kind, says, _with(case.kernel, says), *rest) for kind, says, *rest in FAULTS[name])
        )
