"""How a 16-bit output's bits compare with a way to round (harness/judge/conformance.cpp).

The ways are the rounded model, the others that a recording has (members.py), and o rounded once.
Which of them an output follows, and what it is held to then, the judge says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .gate_statistics import NOISE, UNIT32, Layout, distances, ranked
from .simulation import NARROW

UNDETERMINED = 32.0
"""Noises of float32 that a last place may be, and say nothing."""
SMALL = 1 << 16
"""Elements of outputs that are compared, or measured, at once: a host takes as long for each
operation as for them."""
FEW = 8
"""One in so many elements that differ: of more, nothing but the number counts."""
FEW_PAIRS = 1 << 8
"""Pairs of values that Python counts faster than torch."""
ONCE = "rounds once, at the output"


@dataclass
class Way:
    """One way to round, and what simulated kernels like it show of their bits: mean, deviation and
    largest count of those that are not its own."""

    name: str
    values: torch.Tensor
    bits: Sequence[Any] | None


def alike_in_row(x: torch.Tensor) -> int:
    """The most values of one significand in a row of x: a factor brings them over a tie together.
    Zeros apart, less one."""
    if x.dtype not in NARROW or x.ndim == 0 or x.numel() == 0:
        return 0
    bits = x.reshape(-1, x.shape[-1]).contiguous().view(torch.int16)
    significands = 1 << (7 if x.dtype == torch.bfloat16 else 10)
    counted = (bits & 0x7FFF) != 0
    times = torch.zeros(len(bits), significands, dtype=torch.int64, device=x.device)
    times.scatter_add_(1, (bits & (significands - 1)).long(), counted.long())
    return max(int(times.max()) - 1, 0)


def alike_inputs(y: torch.Tensor, inputs: Sequence[torch.Tensor]) -> int:
    """Of those that are as wide as the output."""
    like = [x for x in inputs if x.ndim and y.ndim and x.shape[-1] == y.shape[-1]]
    return max((alike_in_row(x) for x in like), default=0)


def _crowd(columns: torch.Tensor, m: torch.Tensor, y: torch.Tensor) -> float:
    """Of the pairs of values that are found in a column, each once, the most in one."""
    if len(m) > FEW_PAIRS:
        pairs = torch.stack([columns.double(), m, y], 1)
        pairs = pairs[~pairs.isnan().any(1)].unique(dim=0)
        return float(torch.bincount(pairs[:, 0].long()).max()) if len(pairs) else 0.0
    found = set(zip(columns.tolist(), m.tolist(), y.tolist(), strict=True))
    counted = Counter(column for column, a, b in found if a == a and b == b)
    return float(max(counted.values(), default=0))


class Beside:
    """Compares outputs with models, each [rows, columns] in their dtype: ways to round one output,
    the rounded model first."""

    def __init__(self, layout: Layout, valid: torch.Tensor, models: Sequence[torch.Tensor]) -> None:
        self._valid = valid
        self._narrow = layout.arranged(torch.stack(list(models)))
        self._models = self._narrow.double()
        self._missing = self._models.isnan()
        self._lack = bool(self._missing.any())
        sizes = self._models.abs()
        known = valid & self._models.isfinite()
        middles = [self._middle(it[at]) for it, at in zip(sizes, known, strict=True)]
        self.noise = [NOISE * UNIT32 * middle for middle in middles]
        del sizes, known
        self._near: torch.Tensor | None = None
        for some in self._pieces(self._models[0]):
            self._find_near(some)

    def _pieces(self, y: torch.Tensor) -> list[slice]:
        """Ways that are compared at once: all of small outputs, one of those that fill memory."""
        count = len(self._models)
        if count * y.numel() <= SMALL:
            return [slice(None)]
        return [slice(i, i + 1) for i in range(count)]

    def _find_near(self, some: slice) -> None:
        """Of the elements that cancellation left, what of their last place says nothing."""
        noise = self._models.new_tensor(self.noise[some])[:, None, None]
        ulp = torch.finfo(self._narrow.dtype).eps * self._models[some].abs()
        small = ulp <= UNDETERMINED * noise
        if bool(small.any()):
            if self._near is None:
                self._near = torch.full_like(self._models, -1.0)
            self._near[some] = torch.where(small, ulp + noise, -1.0)

    @staticmethod
    def _middle(sizes: torch.Tensor) -> float:
        return float(ranked(sizes, len(sizes) // 2)) if len(sizes) else 0.0

    def other(self, y: torch.Tensor) -> torch.Tensor:
        """[k, ways, rows, columns]: the elements of outputs [k, rows, columns] in float64 that are
        not each model's, but for the last place of what cancellation left."""
        parts = [self._other(y[:, None], some) for some in self._pieces(y)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _other(self, y: torch.Tensor, some: slice) -> torch.Tensor:
        other = (y != self._models[some]) & self._valid
        if self._lack:
            other &= ~(y.isnan() & self._missing[some])
        if self._near is not None:
            other &= ~((y - self._models[some]).abs() <= self._near[some])
        return other

    def parts(
        self, way: int, y: torch.Tensor, other: torch.Tensor, noise: float
    ) -> tuple[float, float]:
        """How far one of those elements of an output is off, and how many differ in one channel."""
        at = other.nonzero(as_tuple=True)
        a, m = y[at], self._narrow[way][at]
        off = distances(a.to(m.dtype), m, self.noise[way] * noise)
        return float(off.max()) if off.numel() else 0.0, _crowd(at[1], m.double(), a)

    def places(self, y: torch.Tensor) -> list[list[int]]:
        """For each way the first of those elements of an output, and the one that is furthest off;
        -1 where there is none."""
        found = []
        for way, other in enumerate(self.other(y[None])[0]):
            at = other.flatten().nonzero()[:, 0]
            if not len(at):
                found.append([-1, -1])
                continue
            a, m = (t.flatten()[at] for t in (y, self._narrow[way]))
            off = distances(a.to(m.dtype), m, self.noise[way])
            found.append([int(at[0]), int(at[off.argmax()])])
        return found

    def moves(self) -> torch.Tensor:
        """How far each way's roundings move an element of the first model: [ways] in float64."""
        first = self._narrow[0][self._valid]
        if not first.numel():
            return self._models.new_zeros(len(self._models))
        parts = [
            distances(self._narrow[some, self._valid], first, self.noise[0]).amax(-1)
            for some in self._pieces(first)
        ]
        return torch.cat(parts)
