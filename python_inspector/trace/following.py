"""Which roundings a 16-bit output's bits follow, and what they are held to then.

The same rules as harness/replay/recorded.cpp and judge/conformance.cpp. A family is the rounded
model, the other ways to round that a recording has (members.py), and o rounded once. An output
that follows a member is held to that. One that follows none is wrong where no rounded value feeds a
sum; behind such sums a rounding that falls otherwise moves whole rows, and errors decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..format.recording import as_number
from .gate_statistics import NOISE, UNIT32, Layout, distances

BASE, GROWTH, COUNT, SIGMAS, LEAST = 0.003, 3.0, 8.0, 3.0, 64
OF_LARGEST, DEVIATIONS = 3.0, 10.0
UNDETERMINED = 32.0
NEAREST_GROWTH, ACCUMULATION = 0.3, 4.0
FURTHEST, OF_OTHERS = 4.0, 2.0
HETEROGENEITY, CHANCE, FEW = 3.0, 1e-9, 8
NARROW = (torch.float16, torch.bfloat16)
NAMES = ("f16", "bf16")
ONCE = "rounds once, at the output"
FUSED = "_scaled_dot_product"
"""What the names of fused attentions begin with."""

Numbers = Sequence[Any]
"""Mean, deviation and largest, as a recording has them."""


@dataclass
class Way:
    """One way to round, and how many bits of simulated kernels like it are not its own."""

    name: str
    values: torch.Tensor
    bits: Numbers | None
    sums: Sequence[int] = ()
    """Lengths of the sums, where no simulation says how many bits may differ."""
    accurate: bool = True


def part_limit(figures: Numbers) -> float:
    """Of how far bits are off, or in how many of a channel."""
    mean, deviation, largest = (as_number(figure) for figure in figures)
    return max(OF_LARGEST * largest, mean + DEVIATIONS * deviation)


def crowd_limit(rows: int, channels: int, q: float) -> float:
    """The elements of a channel of so many that may differ where each does with chance q;
    infinite where all may."""
    share, chance = min(HETEROGENEITY * q, 1.0), 0.0
    for k in range(1, rows + 1):
        chance += math.log((rows - k + 1) / k * share)
        if k > rows * share and chance < math.log(CHANCE) - math.log(max(channels, 1)):
            return k - 1.0
    return math.inf


def bits_limit(figures: Numbers) -> float:
    mean, deviation, largest = (as_number(figure) for figure in figures)
    if largest == 0:
        return 0.0
    return max(OF_LARGEST * largest + COUNT, mean + DEVIATIONS * deviation)


def cascades(operations: Sequence[dict[str, Any]]) -> bool:
    """Whether a rounding to 16 bits feeds a later sum, or one inside of the same operation: the
    weights of a fused attention are rounded before they multiply the values."""
    first = next((i for i, e in enumerate(operations) if e["stores"] in NAMES), len(operations))
    inside = any(e["op"].startswith(FUSED) for e in operations[first : first + 1])
    return inside or any(entry.get("terms", 1) > 1 for entry in operations[first + 1 :])


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


@dataclass
class Family:
    """The ways to round of one output; the first is the rounded model's."""

    layout: Layout
    valid: torch.Tensor
    """Bool [rows, columns]."""
    u: float
    leaf: bool
    """No rounded value feeds a sum."""
    alike: int
    """Of the inputs of a leaf (alike_in_row)."""
    ways: list[Way]
    parts: tuple[Numbers, Numbers] | None = None
    """What simulated kernels show of `ulp` and `channel bits`, where a recording says it."""
    demanded: bool = True
    """False where the reference itself has other bits than the rounded model."""

    def differing(self, y: torch.Tensor, model: torch.Tensor) -> int:
        """Elements that are not the model's, but for the last place of what cancellation left."""
        return int(self._other(y, model)[0].sum())

    def _other(self, y: torch.Tensor, model: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Those elements [rows, columns], and the noise of float32."""
        a, m = self.layout.matrix(y), self.layout.matrix(model)
        same = (a == m) | (a.isnan() & m.isnan())
        sizes = m[self.valid & m.isfinite()].abs().sort().values
        noise = NOISE * UNIT32 * float(sizes[len(sizes) // 2]) if len(sizes) else 0.0
        ulp = 2 * self.u * m.abs()
        near = (ulp <= UNDETERMINED * noise) & ((a - m).abs() <= ulp + noise)
        return ~same & ~near & self.valid, noise

    def part_ratios(self, y: torch.Tensor, way: Way) -> tuple[float, float]:
        """How far an element is off and how many differ in one channel, over the limits; 0 where so
        many differ that neither says anything."""
        other, noise = self._other(y, way.values)
        if int(other.sum()) > self.valid.numel() // FEW:
            return 0.0, 0.0
        a, m = (self.layout.arranged(t).to(way.values.dtype) for t in (y, way.values))
        noise *= 1 + ACCUMULATION * self._accumulation(way) / (NOISE * UNIT32)
        off = distances(a[other], m[other], noise)
        columns = other.nonzero()[:, 1]
        pairs = torch.stack([columns.double(), m[other].double(), a[other].double()], 1)
        pairs = pairs[~pairs.isnan().any(1)].unique(dim=0)
        crowd = torch.bincount(pairs[:, 0].long(), minlength=1).max() if len(pairs) else 0
        rows = int(self.valid.sum()) // self.layout.columns
        limits = [
            max(FURTHEST, OF_OTHERS * self._others()) if self.leaf else math.inf,
            crowd_limit(rows, self.layout.columns, max(self._share(way), self._allowed(way))),
        ]
        if self.parts is not None:
            limits = [max(x, part_limit(of)) for x, of in zip(limits, self.parts, strict=True)]
        figures = (float(off.max()) if off.numel() else 0.0, float(crowd))
        ratios = [
            0.0 if x == 0 else x / y if y else math.inf
            for x, y in zip(figures, limits, strict=True)
        ]
        return ratios[0], ratios[1]

    def _others(self) -> float:
        """How far the other ways' roundings move an element of the first."""
        first = self.ways[0].values
        _, noise = self._other(first, first)
        off = [
            distances(way.values[valid], first[valid], noise).max()
            for way in self.ways[1:]
            if way.accurate
            for valid in [self._valid_of(first)]
        ]
        return max(map(float, off), default=0.0)

    def _valid_of(self, y: torch.Tensor) -> torch.Tensor:
        return self.layout.restored(self.valid, y.shape)

    def _accumulation(self, way: Way) -> float:
        return sum(NEAREST_GROWTH * math.sqrt(n) * UNIT32 for n in way.sums)

    def _allowed(self, way: Way) -> float:
        """The share of all elements that may differ."""
        return self.limit(way) / max(int(self.valid.sum()), 1)

    def _share(self, way: Way) -> float:
        return BASE + GROWTH * self._accumulation(way) / self.u

    def limit(self, way: Way) -> float:
        expected = int(self.valid.sum()) * self._share(way)
        closed = max(COUNT, expected + SIGMAS * math.sqrt(expected)) + self.alike
        return max(closed, bits_limit(way.bits)) if way.bits is not None else closed

    def follow(self, y: torch.Tensor) -> tuple[float | None, list[torch.Tensor]]:
        """Bits that differ over their limit (None: bits do not decide), and the ways to round whose
        errors y may have, too."""
        if int(self.valid.sum()) < LEAST:
            return None, []
        found = [(self.differing(y, way.values), way) for way in self.ways]
        followed = [
            (max(differ / self.limit(way), *self.part_ratios(y, way)), way)
            for differ, way in found
            if way.accurate and differ <= self.limit(way)
        ]
        if followed:
            ratio, way = next((it for it in followed if it[0] <= 1), followed[0])
            return ratio, [way.values]
        if not self.leaf:
            return None, [way.values for way in self.ways if way.accurate]
        differ, way = found[0]
        return (differ / self.limit(way) if self.demanded else None), []


def family_of(
    layout: Layout,
    valid: torch.Tensor,
    o: torch.Tensor,
    r: torch.Tensor,
    u: float,
    model: Way,
    members: Sequence[Way],
    operations: Sequence[dict[str, Any]],
    inputs: Sequence[torch.Tensor],
    accurate: Callable[[torch.Tensor], bool],
    parts: tuple[Numbers, Numbers] | None = None,
) -> Family:
    """`o` is the oracle in the shape of the output, `inputs` what the recording stores as such."""
    ways = [model, *members]
    if all(way.name != ONCE for way in ways):
        sums = [entry["terms"] for entry in operations if entry.get("terms", 1) > 1]
        ways.append(Way(ONCE, o.to(model.values.dtype), None, sums))
    for way in ways[1:]:
        way.accurate = accurate(way.values)
    leaf = not cascades(operations)
    y = model.values
    like = [x for x in inputs if x.ndim and y.ndim and x.shape[-1] == y.shape[-1]]
    alike = max((alike_in_row(x) for x in like), default=0) if leaf else 0
    family = Family(layout, valid, u, leaf, alike, ways)
    family.parts = parts
    family.demanded = family.differing(r, model.values) <= family.limit(model)
    if max(family.part_ratios(r, model)) > 1:  # nor are these of a kernel
        family.parts = ((math.inf,) * 3, (math.inf,) * 3)
    return family
