"""What a float32 sum in the order of storage, one term after the other, is off by.

Terms that are alike are rounded alike: as long as such a sum stays between two powers of two, each
addition is off by the same. It drifts by up to a quarter of n u, which a random number for a sum of
sqrt(n) u does not show. A partial sum is a multiple of its last place, so what an addition rounds
follows from the term and from how large the sum is there. That any cumulative sum tells, in
whatever order a device makes it: none is made step by step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

LONGEST = 1 << 16
"""Terms of one such sum. More are added in so many parts: a loop over all would lose what float32
is taken for."""


def of_operation(name: str, args: Sequence[Any], exact: torch.Tensor) -> torch.Tensor | None:
    """What the result of an operation that sums is off by; None for an operation that has no such
    kernel here, or where the sum overflows on its way."""
    if name in ("sum", "mean"):
        terms = _in_rows(args[0], args[1] if len(args) > 1 else None)
        off = lost(terms) / (terms.shape[-1] if name == "mean" else 1)
    elif name in ("var", "std") and len(args) < 3:
        terms = _in_rows(args[0], args[1] if len(args) > 1 else None)
        squares = (terms - terms.mean(-1, keepdim=True)).square()
        off = of_function(squares) * exact.flatten() * (0.5 if name == "std" else 1)
    elif name in ("linalg_vector_norm", "norm") and (len(args) < 2 or args[1] == 2):
        terms = _in_rows(args[0], args[2] if len(args) > 2 else None)
        off = of_function(terms.square()) * exact.flatten() / 2
    else:
        return None
    return off.reshape(exact.shape)


def of_weights(weights: torch.Tensor, axis: int) -> torch.Tensor:
    """The share that each weight of a softmax is off by, of its sum along the axis."""
    terms = weights.movedim(axis, -1)
    terms = terms / terms.amax(-1, keepdim=True)  # as they are summed
    return -of_function(terms).unsqueeze(-1).movedim(-1, axis)


def of_function(terms: torch.Tensor) -> torch.Tensor:
    """The share of the sum along the last axis, of terms of one sign; 0 of nothing."""
    return (lost(terms) / terms.sum(-1)).nan_to_num(0.0, 0.0, 0.0)


def lost(terms: torch.Tensor) -> torch.Tensor:
    """What the sum along the last axis is off by."""
    terms = terms.float()
    n = terms.shape[-1]
    if n > LONGEST:
        terms = torch.nn.functional.pad(terms, (0, -n % LONGEST)).unflatten(-1, (-1, LONGEST))
    before, added = terms.cumsum(-1)[..., :-1], terms[..., 1:]
    off = (before + added).sub_(before).sub_(added).sum(-1, dtype=torch.float64)
    return off.sum(-1) if n > LONGEST else off


def _in_rows(x: torch.Tensor, axes: Any) -> torch.Tensor:
    """Its terms along the last axis."""
    x = x.float()
    if axes is None or (isinstance(axes, (tuple, list)) and not axes):
        return x.reshape(1, -1)
    summed = sorted({a % max(1, x.ndim) for a in ([axes] if isinstance(axes, int) else axes)})
    if not x.ndim:
        return x.reshape(1, 1)
    left = [axis for axis in range(x.ndim) if axis not in summed]
    n = math.prod(x.shape[axis] for axis in summed)
    return x.permute(*left, *summed).reshape(-1, n)
