"""Kernels in C, compiled when they are first called. The host alone runs them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from .norms import EPS, rms_norm_like
from .rows import Call, Kernel, Problem, Tensor

SOURCE = Path(__file__).with_name("kernels.c")


@cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="plumbline-corpus-") as folder:
        library = Path(folder) / "kernels.so"
        compiler = os.environ.get("CC", "cc")
        options = ("-O2", "-ffp-contract=off", "-shared", "-fPIC")
        subprocess.run([compiler, *options, SOURCE, "-o", library, "-lm"], check=True)
        return ctypes.CDLL(str(library))


def _at(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def _norm(way: int) -> Call:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        x, out = x.contiguous(), torch.empty_like(x)
        rows, n = map(ctypes.c_long, x.shape)
        _library().rms_norm(_at(x), _at(w), _at(out), rows, n, ctypes.c_float(EPS), way)
        return out

    return kernel


def _softmax(way: int) -> Call:
    def kernel(x: Tensor) -> Tensor:
        x, out = x.contiguous(), torch.empty_like(x)
        _library().softmax(_at(x), _at(out), *map(ctypes.c_long, x.shape), way)
        return out

    return kernel


def _matmul(way: int) -> Call:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        out = a.new_empty(a.shape[0], b.shape[1])
        sizes = map(ctypes.c_long, (*out.shape, a.shape[1]))
        _library().matmul(_at(a.contiguous()), _at(b.contiguous()), _at(out), *sizes, way)
        return out

    return kernel


SUMS = (
    ("eight lanes", 0),
    ("a chain of fma", 1),
    ("compensated", 2),
    ("sum in double", 3),
)
FAULTS = (
    ("tail", "whole vectors alone", 10),
    ("precision", "sum in 16 bits", 11),
    ("tail", "first term of the tail twice", 12),
    ("race", "last lane lost", 13),
)


def rows() -> Iterator[Kernel]:
    norm = Problem(
        "rms_norm in C", rms_norm_like, lambda v: (v(9, 70), v.about_one(70)), ("f32",),
        relative=True,
    )  # fmt: skip
    soft = Problem(
        "softmax in C", lambda x: x.softmax(-1), lambda v: (v(9, 70, scale=3.0),), ("f32",),
        relative=True,
    )  # fmt: skip
    product = Problem("matmul in C", torch.matmul, lambda v: (v(9, 70), v(70, 24)), ("f32",))
    for problem, of in ((norm, _norm), (product, _matmul)):
        yield from problem.right(*((says, of(way)) for says, way in SUMS))
        yield from problem.wrong(*((fault, says, of(way)) for fault, says, way in FAULTS))
    yield from norm.wrong(
        ("constant", "rows as if they were padded", _norm(14)),
        ("stale", "sum of the row before added", _norm(15)),
        ("constant", "divided by the padded size", _norm(16)),
        ("epsilon", "eps outside the root", _norm(17)),
        ("index", "weight of the column modulo 64", _norm(18)),
    )
    yield from product.wrong(
        ("unwritten", "tail of rows", _matmul(14)),
        ("index", "b as if it were transposed", _matmul(15)),
        ("stale", "accumulator not cleared", _matmul(16)),
        ("index", "one column late", _matmul(17)),
    )
    yield from soft.right(
        ("three passes", _softmax(0)), ("running maximum", _softmax(1)), ("base 2", _softmax(2))
    )
    yield from soft.wrong(
        ("stale", "total not rescaled", _softmax(11)),
        ("index", "first value for the maximum", _softmax(13)),
        ("tail", "tail not in the sum", _softmax(14)),
        ("precision", "sum rounded to bfloat16", _softmax(15)),
        ("precision", "exponents rounded to bfloat16", _softmax(16)),
        ("unwritten", "last column", _softmax(17)),
    )
