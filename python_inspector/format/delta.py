"""How a recording says what the float64 oracle is: by `delta`, which is added to the reference."""

from __future__ import annotations

import torch

_SMALLEST = 2.0**-149
"""The smallest positive float32."""


def delta_of(r: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """o - r as f32, 0 of what is the same. Where r alone is no number it is o itself, zero as the
    smallest number: what overflows on its way in the reference need not in a kernel."""
    itself = o.float()
    itself = torch.where(itself == 0, _SMALLEST, itself)
    delta = torch.where(r.isfinite(), (o - r).float(), itself)
    return torch.where(same(r, o), 0.0, delta)


def oracle_of(r: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """In float64."""
    exact, off = r.double(), delta.double()
    lost = ~exact.isfinite() & off.isfinite() & (off != 0)
    return torch.where(lost, off, exact + off)


def same(r: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """Where both are one value, NaN, too, and infinities, to which o may only be rounded."""
    return (r == o) | (r.isnan() & o.isnan()) | (r.isinf() & (r == o.to(r.dtype)))
