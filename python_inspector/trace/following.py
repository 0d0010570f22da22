"""How a 16-bit output's bits compare with a way to round (harness/judge/conformance.cpp).

The ways are the rounded model, the others that a recording has (members.py), and o rounded once.
Which of them an output follows, and what it is held to then, the judge says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .gate_statistics import NOISE, UNIT32, Layout, distances, ranked
from .simulation import NARROW

UNDETERMINED = 32.0
"""Noises of float32 that a last place may be, and say nothing."""
FEW = 8
"""One in so many elements that differ: of more, nothing but the number counts."""
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


class Beside:
    """Compares outputs with one model [rows, columns], in its dtype."""

    def __init__(self, layout: Layout, valid: torch.Tensor, model: torch.Tensor) -> None:
        self._layout, self._valid = layout, valid
        self._narrow = layout.arranged(model)
        self._model = self._narrow.double()
        self._missing = self._model.isnan()
        sizes = self._model[valid & self._model.isfinite()].abs()
        middle = float(ranked(sizes, len(sizes) // 2)) if len(sizes) else 0.0
        self.noise = NOISE * UNIT32 * middle
        ulp = torch.finfo(model.dtype).eps * self._model.abs()
        small = ulp <= UNDETERMINED * self.noise
        self._near = torch.where(small, ulp + self.noise, -1.0) if bool(small.any()) else None

    def other(self, y: torch.Tensor) -> torch.Tensor:
        """The elements of y, [rows, columns] in float64, that are not the model's, but for the last
        place of what cancellation left."""
        other = (y != self._model) & self._valid & ~(y.isnan() & self._missing)
        if self._near is not None:
            other &= ~((y - self._model).abs() <= self._near)
        return other

    def parts(self, y: torch.Tensor, other: torch.Tensor, noise: float) -> tuple[float, float]:
        """How far one of those elements is off, and how many differ in one channel."""
        a, m = y[other], self._narrow[other]
        off = distances(a.to(m.dtype), m, self.noise * noise)
        columns = other.nonzero()[:, 1]
        pairs = torch.stack([columns.double(), m.double(), a], 1)
        pairs = pairs[~pairs.isnan().any(1)].unique(dim=0)
        crowd = torch.bincount(pairs[:, 0].long()).max() if len(pairs) else 0
        return float(off.max()) if off.numel() else 0.0, float(crowd)

    def places(self, y: torch.Tensor) -> list[int]:
        """The first of those elements, and the one that is furthest off; -1 where there is none."""
        at = self.other(y).flatten().nonzero()[:, 0]
        if not len(at):
            return [-1, -1]
        a, m = (t.flatten()[at] for t in (y, self._narrow))
        off = distances(a.to(m.dtype), m, self.noise)
        return [int(at[0]), int(at[off.argmax()])]

    def moves(self, other: Beside) -> float:
        """How far another way's roundings move an element of this model."""
        a, m = other._narrow[self._valid], self._narrow[self._valid]
        off = distances(a, m, self.noise)
        return float(off.max()) if off.numel() else 0.0
