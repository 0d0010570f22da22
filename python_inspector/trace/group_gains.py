"""What the gains of whole channels and heads are measured in: what of their noise does not cancel.

As harness/judge/group_gains.h says it: over the rows of a channel the errors of a right kernel
cancel, what is a factor adds up. A test holds both to each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .gate_statistics import SMALLEST_GROUP, Layout, Scales


@dataclass
class GainFamily:
    size: torch.Tensor
    """sum o^2 of each group; 0 for those that do not count."""
    alike: torch.Tensor
    level: torch.Tensor
    rows: torch.Tensor
    """The squared sizes of its rows over sum o^2, at least 1."""


def gain_families(scales: Scales) -> dict[str, GainFamily]:
    """By gate; nothing counts where there are too few rows."""
    layout = scales.layout
    if not layout.has_columns:
        return {}
    gates = ["channel gain"] if layout.head is None else ["channel gain", "head gain"]
    if scales.count_of_rows < SMALLEST_GROUP:
        return {name: _none(scales, name) for name in gates}
    return {name: _channels(scales) if name == gates[0] else _heads(scales) for name in gates}


def _none(scales: Scales, name: str) -> GainFamily:
    layout = scales.layout
    heads = layout.head[1] if layout.head else 0
    zeros = scales.o.new_zeros(layout.columns if name == "channel gain" else heads)
    return GainFamily(zeros, zeros, zeros, torch.ones_like(zeros))


def _channels(scales: Scales) -> GainFamily:
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
    return GainFamily(
        torch.where(counted, size, 0.0),
        alike(o.square()) / whole.square(),
        alike(o.abs() * level) / (whole * of_levels),
        (of_levels / whole).clamp_min(1),
    )


def _heads(scales: Scales) -> GainFamily:
    """Errors of a head's elements in one row may be of one cause: none of them cancel."""
    parts = _by_head(scales.known.square(), scales.layout)
    size = parts.sum(0)
    ordered = parts.sort(0).values
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    counted = _count((first & (ordered > 0)).sum(0), size, scales.smallest)
    sums = torch.zeros_like(ordered).scatter_add_(0, first.long().cumsum(0) - 1, ordered)
    share = sums.square().sum(0) / torch.where(counted, size, 1.0).square()
    return GainFamily(torch.where(counted, size, 0.0), share, share, torch.ones_like(size))


def _count(distinct: torch.Tensor, size: torch.Tensor, normal: float) -> torch.Tensor:
    """Whether groups of so many rows do: what is made of denormal numbers has no gain."""
    return (distinct >= SMALLEST_GROUP) & (size >= distinct * normal**2)


def _by_head(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """[..., columns] summed to [..., heads]."""
    assert layout.head is not None
    return x.reshape(*x.shape[:-1], *layout.head).sum((-3, -1))
