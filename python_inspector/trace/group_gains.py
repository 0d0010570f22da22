"""How much too large whole channels and heads are.

The same rule as harness/judge/group_gains.h: over the rows of a channel the errors of a right
kernel cancel, what is a factor adds up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .gate_statistics import SMALLEST_GROUP, Layout, Scales

CHANCE = 1e-9
"""That a right output has a channel, or head, with a larger gain."""
SMALLEST, CONSTANTS = 0.25, 2.0
MEDIAN_TO_SIGMA = 0.6745


@dataclass
class Columns:
    """The errors d of outputs, summed over the rows of every column: [k, columns]."""

    energy: torch.Tensor
    """sum d^2"""
    along: torch.Tensor
    """sum d o"""

    def or_larger(self, other: Columns) -> Columns:
        far = other.along.abs() > self.along.abs()
        along = torch.where(far, other.along, self.along)
        return Columns(torch.maximum(self.energy, other.energy), along)


@dataclass
class _Family:
    size: torch.Tensor
    """sum o^2 of each group; 0 for those that do not count."""
    alike: torch.Tensor
    level: torch.Tensor
    rows: torch.Tensor
    """The squared sizes of its rows over sum o^2, at least 1."""
    counted: int


class GainScales:
    """What the gains of an output need of its oracle."""

    def __init__(self, scales: Scales, u: float, rounding: float, c: float) -> None:
        """`rounding` is the RMS of one, `c` the factor of limits."""
        self._scales, self._u, self._rounding, self._c = scales, u, rounding, c
        self._narrow = torch.finfo(scales.storage).bits == 16
        self._families: dict[str, _Family] = {}
        layout = scales.layout
        if layout.has_columns and int(scales.usable.any(1).sum()) >= SMALLEST_GROUP:
            found = {"channel gain": _channels(scales)}
            if layout.head is not None:
                found["head gain"] = _heads(scales)
            self._families = {name: family for name, family in found.items() if family.counted}

    def columns(self, y: torch.Tensor) -> Columns:
        """Of outputs [k, *shape], finite ones."""
        off = self._scales.off(y)
        return Columns(off.square().sum(-2), (off * self._scales.known).sum(-2))

    def ratios(self, y: Columns, reference: Columns, error: float) -> dict[str, torch.Tensor]:
        """The largest gain of each family over its limit; `error` is what the whole output may be
        off by."""
        return {
            name: self._ratio(name, family, y, reference, error)
            for name, family in self._families.items()
        }

    def _ratio(
        self, name: str, family: _Family, y: Columns, reference: Columns, error: float
    ) -> torch.Tensor:
        layout = self._scales.layout
        group = (lambda x: x) if name == "channel gain" else (lambda x: _by_head(x, layout))
        counted = family.size > 0
        size = torch.where(counted, family.size, 1.0)
        gain = (group(y.along) / size).abs()
        of_reference = (group(reference.along) / size).abs()
        rest = (group(y.energy) / size - gain.square()).clamp_min(0)
        stored = min(error, self._rounding) ** 2 if self._narrow else 0.0
        least = stored + (error**2 - stored) * family.rows
        of_group = torch.maximum(torch.maximum(group(reference.energy) / size, rest), least)
        if self._narrow:
            own = of_group.clamp_max(self._rounding**2)
            variance = own * family.alike + (of_group - own) * family.level
        else:
            variance = of_group * torch.maximum(family.alike, family.level)
        deviations = self._c / 2 * math.sqrt(2 * math.log(family.counted / CHANCE))
        noise = variance.sqrt()
        shares = torch.where(gain == 0, 0.0, gain / noise)[..., counted]
        usual = (shares.median(-1, keepdim=True).values / MEDIAN_TO_SIGMA).clamp_min(1)
        limit = torch.maximum(deviations * usual * noise, SMALLEST * of_group.sqrt())
        limit = torch.maximum(limit, self._c * of_reference)
        limit = limit.clamp_min(0.0 if self._narrow else CONSTANTS * self._u)
        ratio = torch.where(gain == 0, 0.0, gain / limit)
        return torch.where(counted, ratio, 0.0).amax(-1)


def _channels(scales: Scales) -> _Family:
    usable, o = scales.usable, scales.known
    level = torch.where(usable, scales.rows[:, None], 0.0)
    size = o.square().sum(0)
    rounded = torch.where(usable, o.to(scales.storage).double(), torch.inf)
    ordered, order = rounded.sort(0)
    first = torch.ones_like(usable)
    first[1:] = ordered[1:] != ordered[:-1]
    counted = _count((first & ordered.isfinite()).sum(0), size, scales.smallest)
    places = first.long().cumsum(0) - 1

    def alike(x: torch.Tensor) -> torch.Tensor:
        """The squares of sums over those that round to one number."""
        return torch.zeros_like(x).scatter_add_(0, places, x.gather(0, order)).square().sum(0)

    whole = torch.where(counted, size, 1.0)
    of_levels = torch.where(counted, level.square().sum(0), 1.0)
    return _Family(
        torch.where(counted, size, 0.0),
        alike(o.square()) / whole.square(),
        alike(o.abs() * level) / (whole * of_levels),
        (of_levels / whole).clamp_min(1),
        int(counted.sum()),
    )


def _heads(scales: Scales) -> _Family:
    """Errors of a head's elements in one row may be of one cause: none of them cancel."""
    parts = _by_head(scales.known.square(), scales.layout)
    size = parts.sum(0)
    ordered = parts.sort(0).values
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    counted = _count((first & (ordered > 0)).sum(0), size, scales.smallest)
    sums = torch.zeros_like(ordered).scatter_add_(0, first.long().cumsum(0) - 1, ordered)
    share = sums.square().sum(0) / torch.where(counted, size, 1.0).square()
    one = torch.ones_like(size)
    return _Family(torch.where(counted, size, 0.0), share, share, one, int(counted.sum()))


def _count(distinct: torch.Tensor, size: torch.Tensor, normal: float) -> torch.Tensor:
    """Whether groups of so many rows do: what is made of denormal numbers has no gain."""
    return (distinct >= SMALLEST_GROUP) & (size >= distinct * normal**2)


def _by_head(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """[..., columns] summed to [..., heads]."""
    assert layout.head is not None
    return x.reshape(*x.shape[:-1], *layout.head).sum((-3, -1))
