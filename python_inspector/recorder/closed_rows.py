"""Rows of outputs that no gradient is asked of: what correct kernels do there is open.

A gradient of a weight is a sum over rows. One row that depends on a choice within rounding, or on
attention without a key, would leave nothing of it to judge; a cotangent of 0 there leaves the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..trace.open_choices import Open
from .kernel_gradients import COTANGENT, is_gradient
from .one_call import Arguments

TURNS = 3
"""How often rows are left out at most: with fewer of them others may turn out to be open."""


def without_open_rows(arguments: Arguments, undecided: Mapping[str, Open]) -> Arguments | None:
    """A gradient's arguments with cotangents of 0 in further rows; None where none is open, or no
    row would be left.

    Those of an output that is open there first. Where that was not enough, those in which the
    gradient of an operand with the same rows is.
    """
    args, kwargs = arguments
    given: Mapping[str, torch.Tensor] = kwargs[COTANGENT]
    own = {name: _rows(undecided[name], g) for name, g in given.items() if name in undecided}
    closed = _closed(given, {name: [rows] for name, rows in own.items()})
    if not closed:
        others = [it for name, it in undecided.items() if is_gradient(name)]
        closed = _closed(
            given, {name: [_rows(it, g) for it in others] for name, g in given.items()}
        )
    return (args, {**kwargs, COTANGENT: {**given, **closed}}) if closed else None


def words_on_closed(arguments: Arguments) -> tuple[str, ...]:
    """What is said of cotangents that are 0 in some rows."""
    said = []
    for name, g in arguments[1][COTANGENT].items():
        zeros = (g == 0).all(-1) if g.ndim > 1 else g == 0
        if count := int(zeros.sum()):
            said.append(
                f"{COTANGENT}.{name} is 0 in {count} of {zeros.numel()} rows: what is right there "
                "depends on a choice within rounding, or on a row without a key"
            )
    return tuple(said)


def _rows(found: Open, g: torch.Tensor) -> torch.Tensor:
    return found.mask.any(-1) if g.ndim > 1 and found.mask.ndim else found.mask


def _closed(
    given: Mapping[str, torch.Tensor], rows_of: Mapping[str, list[torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """The cotangents that are 0 in more rows, and not in all."""
    out = {}
    for name, found in rows_of.items():
        g = given[name]
        fits = [rows for rows in found if rows.shape == (g.shape[:-1] if g.ndim > 1 else g.shape)]
        if not fits:
            continue
        rows = torch.stack(fits).any(0)
        left = g.masked_fill(rows[..., None] if g.ndim > 1 else rows, 0)
        if bool((left != 0).any()) and not torch.equal(left, g):
            out[name] = left
    return out
