"""Why a kernel is wrong: its error in float64 against that of right kernels. No limit of ours.

The reference runs in float64. Three sizes of an error are taken: of each row (its last axis), the
root of the mean square; of the whole output, the share of it that is in the error (a result that is
1 % high has 0.01); where nothing cancels, of each element. What rounding may do to a size is the
largest one among the right kernels of the problem, torch's own among them, and a rounding of the
output. A kernel's figure is its worst size over that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .rows import DTYPES, Kernel, Problem, Tensor, Values

Called = tuple[list[Tensor], bool]
"""Results, and whether the arguments are what they were."""
ROUNDINGS = 4
"""Of an element, and standard deviations of the share: sizes that right kernels reach by chance."""


def called(kernel: Callable[..., Any], inputs: Any) -> Called:
    given = tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, inputs)
    results = [t.detach() for t in tree_leaves(kernel(*given))]
    pairs = zip(tree_leaves(given), tree_leaves(inputs), strict=True)
    return results, all(torch.equal(a, b) for a, b in pairs)


def _sizes(y: Tensor, o: Tensor, relative: bool) -> Iterator[Tensor]:
    """Of the error of y; scalars and vectors have a row for each element."""
    finite = o.isfinite()
    error, exact = torch.where(finite, y.double() - o, 0), torch.where(finite, o, 0)
    yield error.square().mean(-1).sqrt().reshape(-1) if o.ndim > 1 else error.abs().reshape(-1)
    yield ((error * exact).sum() / exact.square().sum().clamp_min(1e-300)).abs().reshape(1)
    if relative:
        yield error.abs().reshape(-1)


def _roundings(o: Tensor, unit: float, relative: bool) -> Iterator[Tensor]:
    """A rounding of each size."""
    exact = torch.where(o.isfinite(), o, 0)
    yield unit * next(_sizes(2 * exact, exact, False))
    yield exact.new_full((1,), ROUNDINGS * unit / math.sqrt(o.numel()))
    if relative:
        yield ROUNDINGS * unit * exact.abs().reshape(-1)


class Truth:
    """What float64 gives for a problem, and what its right kernels are off by, in one dtype."""

    def __init__(
        self,
        problem: Problem,
        right: Sequence[Kernel],
        dtype: str,
        device: str = "cpu",
        operands: Sequence[Any] | None = None,
    ) -> None:
        """By default on operands of each of the problem's kinds."""
        self._relative = problem.relative
        self._cases: list[tuple[Any, list[Tensor], list[list[Tensor] | None]]] = []
        calls = [problem.like, *(it.fresh() for it in right if dtype in it.dtypes)]
        drawn = (
            problem.of(Values(kind, DTYPES[dtype], device, seed))
            for seed, kind in enumerate(problem.kinds)
        )
        for inputs in drawn if operands is None else operands:
            exact, _ = called(problem.like, tree_map(_double, inputs))
            made = [called(call, inputs)[0] for call in calls]
            allowed = [self._allowed(o, [y[i] for y in made]) for i, o in enumerate(exact)]
            self._cases.append((inputs, exact, allowed))

    def _allowed(self, o: Tensor, made: Sequence[Tensor]) -> list[Tensor] | None:
        if not o.is_floating_point():
            return None
        info = torch.finfo(made[0].dtype)
        sizes = zip(*(_sizes(y, o, self._relative) for y in made), strict=True)
        least = _roundings(o, info.eps / 2, self._relative)
        denormal = info.tiny * info.eps
        return [
            torch.stack(of).nan_to_num(0, 0, 0).amax(0) + rounding + denormal
            for of, rounding in zip(sizes, least, strict=True)
        ]

    def error(self, kernel: Callable[..., Any]) -> float:
        """Times what rounding may do; infinite for what no rounding does at all."""
        return max(self._error(kernel, *case) for case in self._cases)

    def _error(
        self,
        kernel: Callable[..., Any],
        inputs: Any,
        exact: list[Tensor],
        allowed: list[list[Tensor] | None],
    ) -> float:
        try:
            results, kept = called(kernel, inputs)
        except Exception:
            return math.inf
        if not kept or len(results) != len(exact):
            return math.inf
        return max(map(self._over, results, exact, allowed))

    def _over(self, y: Tensor, o: Tensor, allowed: list[Tensor] | None) -> float:
        if y.shape != o.shape or (allowed is None and y.dtype != o.dtype):
            return math.inf
        if allowed is None:
            return 0.0 if torch.equal(y, o) else math.inf
        if not torch.equal(y.isfinite(), o.isfinite()):
            return math.inf
        sizes = _sizes(y, o, self._relative)
        return max(float((a / b).max()) for a, b in zip(sizes, allowed, strict=True))


def _double(value: Any) -> Any:
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floats else value
