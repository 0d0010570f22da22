"""How far each row of a large output is off, by sums that cost one pass besides its float64 run.

What elements and rows are measured in is estimated here, never too large by much: a row that is
within the limits so is within them by the judge's own figures, and others are left to the judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..format.generator import splitmix64
from ..format.recording import as_number
from ..trace.failing import figures
from ..trace.gate_statistics import (
    MEDIAN_TO_SIGMA,
    SMALLEST_GROUP,
    SMALLEST_SCALE,
    TILE,
    Layout,
    family_names,
    group_sums,
    layout_of,
    medians,
    ranked,
)
from ..trace.gates import Gates

SOME = 512
"""Columns whose median is used as a row's: it is a twentieth off, seldom more."""
SURELY = 0.75
"""Of that median a row's is at least."""
FAMILIES = ("token", "token x head", "tile")
_SEED = 2


@dataclass(frozen=True)
class Limits:
    """Of one output, as its chosen rows show."""

    storage: torch.dtype
    element: float
    groups: Mapping[str, float]
    """Of families of groups that are within a few rows."""
    smallest: float
    """Size of a row, that of elements in it, that errors are measured in at least."""


def limits_of(gates: Gates, name: str, labels: Sequence[str] | None) -> Limits:
    found = figures(gates, gates.r, name, labels)["verdict"]["gates"]
    limits = {gate["name"]: as_number(gate["limit"]) for gate in found}
    scales = gates.scales
    usual = SMALLEST_SCALE * float(medians(scales.rows[None]).nan_to_num(0.0))
    return Limits(
        gates.r.dtype,
        limits.get("element", 0.0),
        {name: limits[name] for name in FAMILIES if name in limits},
        max(usual, scales.smallest),
    )


def shares(
    y: torch.Tensor,
    o: torch.Tensor,
    axes: Sequence[str],
    r: torch.Tensor,
    limits: Limits | None,
    axis: int,
) -> torch.Tensor:
    """Of each row along `axis` the largest error of an element, or of the row, in its limit: above
    1 for what is beyond it. `r` is what `like` gives, which discrete outputs have to be."""
    y = y.to(o.device)  # a kernel may return arrays of the host
    others = [i for i in range(o.ndim) if i != axis]
    if limits is None:
        off = (y != r).double() * 2
        return off.amax(others) if others else off
    layout = layout_of(o.shape, axes)
    exact, came = layout.matrix(o), layout.arranged(y).to(limits.storage)
    rounded = exact.to(limits.storage)
    same = (came == rounded) | (came.isnan() & rounded.isnan())
    off = torch.where(same, 0.0, came.double() - exact).abs_()
    size = _sizes(exact, limits)
    worst = off / (limits.element * torch.maximum(exact.abs(), size[:, None]))
    worst = torch.maximum(worst, _of_groups(exact, off, layout, limits)[:, None])
    worst = layout.restored(worst.nan_to_num_(torch.inf, torch.inf), o.shape)
    return worst.amax(others) if others else worst


def _of_groups(
    exact: torch.Tensor, off: torch.Tensor, layout: Layout, limits: Limits
) -> torch.Tensor:
    """Of each row the largest error of a group of elements that it has a part of, in its limit."""
    worst = off.new_zeros(layout.rows)
    known = torch.where(exact.isfinite(), exact, 0.0).square_()
    squares = off.square()
    for family in family_names(layout):
        limit = limits.groups.get(family)
        if limit is None:
            continue
        sizes = group_sums(off.new_ones(()).expand_as(off), family, layout)
        size = (group_sums(known, family, layout) / sizes).sqrt_().clamp_min(limits.smallest)
        errors = (group_sums(squares, family, layout) / sizes).sqrt_() / (limit * size)
        errors = torch.where(sizes >= SMALLEST_GROUP, errors, 0.0)
        worst = torch.maximum(worst, _of_rows(errors, family, layout))
    return worst


def _of_rows(errors: torch.Tensor, family: str, layout: Layout) -> torch.Tensor:
    if family != "tile":
        return errors.reshape(layout.rows, -1).amax(-1)
    tokens = len(layout.tokens)
    tiles = errors.reshape(layout.batch, -(-tokens // TILE), -1).amax(-1)
    return tiles.repeat_interleave(TILE, -1)[:, :tokens].flatten()


def _sizes(exact: torch.Tensor, limits: Limits) -> torch.Tensor:
    """Of each row [rows, columns] what small elements are measured in."""
    columns = exact.shape[-1]
    if columns > SOME:
        at = splitmix64(_SEED, 0, SOME, exact.device) % columns
        exact = exact.index_select(-1, at.abs())
    known = exact.abs().nan_to_num_(0.0, 0.0)
    middle = ranked(known, (known.shape[-1] - 1) // 2) / MEDIAN_TO_SIGMA
    return (SURELY * middle).clamp_min(limits.smallest)
