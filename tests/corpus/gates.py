"""The gates of five benchmarks, written again from a reading of their sources.

Read at KernelBench 423217d, BackendBench 66e0dbc, flashinfer-bench 40e6ca7, robust-kbench 078f5ba,
GPU MODE's reference-kernels f83cb92. A gate is the rule by which results are compared, and the
values on which it is applied. Where a source leaves a choice the milder one for them is taken:
kernels are given copies of the inputs everywhere but in KernelBench. GPU MODE's tolerances are each
problem's own, from 1e-5 to 0.1; most of those read are 1e-2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .rows import DTYPES, Kernel, Problem, Tensor, Values

Rule = Callable[[Problem, list[Tensor], list[Tensor]], bool]
"""Whether the results of a kernel, the last argument, are taken for those of the reference."""


def _same_form(expected: list[Tensor], got: list[Tensor]) -> bool:
    return len(expected) == len(got) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(expected, got, strict=True)
    )


def _kernelbench(problem: Problem, expected: list[Tensor], got: list[Tensor]) -> bool:
    """One tensor. Tensors of another dtype are an error of allclose()."""
    most = 1e-4 if expected[0].dtype == torch.float32 else 1e-2
    a, b = expected[0], got[0]
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, atol=most, rtol=most)


def _backendbench(problem: Problem, expected: list[Tensor], got: list[Tensor]) -> bool:
    try:
        torch.testing.assert_close(got, expected, atol=1e-2, rtol=1e-2, equal_nan=True)
    except AssertionError:
        return False
    return True


def _flashinfer_bench(problem: Problem, expected: list[Tensor], got: list[Tensor]) -> bool:
    """An element is wrong if its error is large *and* large next to it; next to NaN it is not."""
    if not _same_form(expected, got):
        return False
    for a, b in zip(expected, got, strict=True):
        if not b.isfinite().all():
            return False
        error = (b.float() - a.float()).abs()
        exceeds = (error > 1e-2) & (error / (a.float().abs() + 1e-8) > 1e-2)
        if 1 - exceeds.sum().item() / exceeds.numel() < problem.share:
            return False
    return True


def _robust_kbench(problem: Problem, expected: list[Tensor], got: list[Tensor]) -> bool:
    return _same_form(expected[:1], got[:1]) and torch.allclose(
        expected[0], got[0], atol=1e-5, rtol=1e-5
    )


def _gpu_mode(problem: Problem, expected: list[Tensor], got: list[Tensor]) -> bool:
    return len(expected) == len(got) and all(
        a.shape == b.shape
        and torch.allclose(a.double(), b.double(), atol=1e-2, rtol=1e-2, equal_nan=True)
        for a, b in zip(expected, got, strict=True)
    )


@dataclass(frozen=True)
class Gate:
    name: str
    rule: Rule
    values: str
    """The kind of the operands: from 0 to 1, or normal."""
    calls: int
    """With other values each."""
    dtypes: tuple[str, ...] = ("f32", "bf16", "f16")
    copies: bool = True
    kernel_first: bool = False

    def passes(self, row: Kernel, dtype: str, device: str) -> bool:
        """Whether a kernel passes on all calls; what it raises is a failure."""
        kernel = row.fresh()
        return all(
            self._passes(kernel, row.problem, Values(self.values, DTYPES[dtype], device, seed))
            for seed in range(self.calls)
        )

    def _passes(self, kernel: Callable[..., Any], problem: Problem, values: Values) -> bool:
        inputs = problem.of(values)
        mine = _copied(inputs) if self.copies else inputs
        try:
            before = tree_leaves(kernel(*mine)) if self.kernel_first else None
            expected = tree_leaves(problem.like(*inputs))
            got = tree_leaves(kernel(*mine))
            return all(self.rule(problem, expected, it) for it in (before, got) if it is not None)
        except Exception:
            return False


def _copied(inputs: Any) -> Any:
    return tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, inputs)


GATES = (
    Gate("KernelBench", _kernelbench, "uniform", 5, copies=False),
    Gate("BackendBench", _backendbench, "uniform", 1),
    Gate("flashinfer-bench", _flashinfer_bench, "normal", 3),
    Gate("robust-kbench", _robust_kbench, "normal", 2, dtypes=("f32",), kernel_first=True),
    Gate("GPU MODE", _gpu_mode, "normal", 1),
)
