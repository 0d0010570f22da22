"""How far the reference is from its oracle: delta, and one number for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..errors import RecordError
from ..format.delta import delta_of, oracle_of, same

_TINY = 1e-30
"""Below it, of a norm, the smallest float32, of which delta is a multiple, is seen in an error."""


@dataclass
class Difference:
    """delta as f32 (None: exactly zero; format/delta.py), and error = sqrt(sum delta^2 / sum o^2):
    inf where the reference has infinities or NaN that the oracle has not."""

    delta: torch.Tensor | None
    error: float


def difference(
    r: torch.Tensor, o: torch.Tensor, valid: torch.Tensor | None, where: str
) -> Difference:
    """How far the reference is from the oracle; `valid` broadcasts against both.

    Equal infinities and equal NaNs differ by zero.
    """
    if r.shape != o.shape:
        raise RecordError(f"[{where}] output is {tuple(r.shape)}, its oracle {tuple(o.shape)}")
    if not r.is_floating_point():
        return Difference(None, 0.0)
    delta = stored = (o - r).float()
    spread, size = _norms(delta, o)
    if not math.isfinite(spread):
        equal = same(r, o)
        delta, stored = torch.where(equal, 0.0, delta), delta_of(r, o)
        some = ~equal | r.isfinite()
        valid = some if valid is None else valid & some
        spread, size = _norms(delta, o)
    if spread == 0.0:
        return Difference(None, 0.0)

    def counted(t: torch.Tensor) -> torch.Tensor:
        return t if valid is None else torch.where(valid, t, 0.0)

    if valid is not None and not bool(valid.all()):
        spread, size = _norms(counted(delta), counted(o))
    if size < max(spread, _TINY):  # a reader's o is r + delta, and delta's rounding is some of it
        spread, size = _norms(counted(delta), counted(oracle_of(r, stored)))
    error = spread / size if size else math.inf
    return Difference(stored, error if spread else 0.0)


def _norms(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """Of both the square root of the sum of squares, in float64; asked of the device at once."""
    norms = [torch.linalg.vector_norm(t, dtype=torch.float64) for t in (a, b)]
    first, second = torch.stack(norms).tolist()
    return first, second
