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
from .gate_statistics import Layout

BASE, GROWTH, COUNT, SIGMAS, LEAST = 0.003, 3.0, 8.0, 3.0, 64
OF_LARGEST, DEVIATIONS = 3.0, 10.0
NOISE, UNDETERMINED = 8.0, 32.0
NEAREST_GROWTH = 0.3
UNIT32 = 2.0**-24
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
    demanded: bool = True
    """False where the reference itself has other bits than the rounded model."""

    def differing(self, y: torch.Tensor, model: torch.Tensor) -> int:
        """Elements that are not the model's, but for the last place of what cancellation left."""
        a, m = self.layout.matrix(y), self.layout.matrix(model)
        same = (a == m) | (a.isnan() & m.isnan())
        sizes = m[self.valid & m.isfinite()].abs().sort().values
        noise = NOISE * UNIT32 * float(sizes[len(sizes) // 2]) if len(sizes) else 0.0
        ulp = 2 * self.u * m.abs()
        near = (ulp <= UNDETERMINED * noise) & ((a - m).abs() <= ulp + noise)
        return int((~same & ~near & self.valid).sum())

    def limit(self, way: Way) -> float:
        sums = sum(NEAREST_GROWTH * math.sqrt(n) * UNIT32 for n in way.sums)
        expected = int(self.valid.sum()) * (BASE + GROWTH * sums / self.u)
        closed = max(COUNT, expected + SIGMAS * math.sqrt(expected)) + self.alike
        return max(closed, bits_limit(way.bits)) if way.bits is not None else closed

    def follow(self, y: torch.Tensor) -> tuple[float | None, list[torch.Tensor]]:
        """Bits that differ over their limit (None: bits do not decide), and the ways to round whose
        errors y may have, too."""
        if int(self.valid.sum()) < LEAST:
            return None, []
        found = [(self.differing(y, way.values), way) for way in self.ways]
        for differ, way in found:
            if way.accurate and differ <= self.limit(way):
                return differ / self.limit(way), [way.values]
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
    family.demanded = family.differing(r, model.values) <= family.limit(model)
    return family
