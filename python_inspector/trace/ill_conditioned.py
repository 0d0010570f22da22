"""Rows of an output that correct kernels do not agree on: they prove nothing, and are set aside.

Where simulated correct kernels are off by more than a tenth of a row's size (sums that overflow,
differences of which nothing is left), any value would be within what they show, and the limits of
all other rows would be as wide. The same rule as harness/judge/ill_conditioned.cpp, which has it
for recordings that do not say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..format.recording import as_number
from .gate_statistics import SMALLEST_GROUP, SMALLEST_SCALE, Scales, medians
from .spread import Judged, spreads_of_kinds

ILL_CONDITIONED = 0.1
"""Of a row's size: how far simulated kernels are off on average."""


def of_the_rest(
    output: Judged, samples: torch.Tensor, entries: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], torch.Tensor | None]:
    """The spread entries of an output without its ill-conditioned rows, which its scales then lack,
    and those rows, True in the shape of the output; None where there is none."""
    rows = ill_rows(output.scales, samples, len(entries)) if may_be_ill(entries) else None
    if rows is None:
        return entries, None
    output.scales = without(output.scales, rows)
    return spreads_of_kinds(output, samples, kinds=len(entries)), rows


def may_be_ill(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the spread entries leave room for such a row: its error is at most the largest row's,
    or the largest element's where rows are too short to be groups."""
    figures = [entry.get("token", entry["element"]) for entry in entries]
    return any(not as_number(mean) <= ILL_CONDITIONED for mean, *_ in figures)


def ill_rows(scales: Scales, samples: torch.Tensor, kinds: int) -> torch.Tensor | None:
    """True in the ill-conditioned rows of one output, in its shape; None where there is none.

    `samples` are [1 + kinds * runs, *shape], the rounded model first.
    """
    sizes, row_sizes = _sizes(scales)
    runs = (len(samples) - 1) // kinds
    ill = torch.zeros(scales.layout.rows, dtype=torch.bool, device=samples.device)
    for kind in range(kinds):
        errors = torch.zeros_like(row_sizes)
        for sample in samples[1 + kind * runs : 1 + (kind + 1) * runs]:
            energy = _off(scales, sample).square().sum(-1)
            errors += torch.where(energy == 0, 0.0, (energy / sizes).sqrt() / row_sizes)
        ill |= (sizes > 0) & ~(errors / runs <= ILL_CONDITIONED)
    if not bool(ill.any()):
        return None
    layout = scales.layout
    return layout.restored(ill[:, None].expand(-1, layout.columns), samples.shape[1:])


def without(scales: Scales, rows: torch.Tensor) -> Scales:
    """The same without these elements."""
    layout = scales.layout
    left = layout.restored(scales.usable, rows.shape) & ~rows
    return Scales(layout, layout.restored(scales.o, rows.shape), left, storage=scales.storage)


def _sizes(scales: Scales) -> tuple[torch.Tensor, torch.Tensor]:
    """Usable elements of each row, and what its error is measured in: its RMS, or a share of the
    median row's. Of rows too short to be groups it is all of that: cancellation leaves one of their
    few elements small, and no error large."""
    sizes = scales.usable.sum(-1).double()
    rms = (scales.known.square().sum(-1) / sizes).sqrt()
    middle = medians(rms[None]).nan_to_num(0.0, posinf=math.inf)
    share = torch.where(sizes >= SMALLEST_GROUP, SMALLEST_SCALE, 1.0)
    rms = torch.maximum(rms.nan_to_num(0.0, posinf=math.inf), share * middle)
    return sizes, rms.clamp_min(scales.smallest)


def _off(scales: Scales, sample: torch.Tensor) -> torch.Tensor:
    """[rows, columns]: how far a sample is off; not at all where it overflows as the oracle's
    rounded value does."""
    y = scales.layout.arranged(sample)
    overflows = ~y.isfinite() & (y == scales.o.to(y.dtype))
    return torch.where(scales.usable & ~overflows, y.double() - scales.known, 0.0)
