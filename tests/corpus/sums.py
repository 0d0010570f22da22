"""Sums of the last axis in other orders, and roots by other ways: what right kernels differ in."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from .rows import Tensor


def _pairs(x: Tensor) -> Tensor:
    while x.shape[-1] > 1:
        x = F.pad(x, (0, x.shape[-1] % 2))
        x = x[..., ::2] + x[..., 1::2]
    return x[..., 0]


def _one_by_one(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[..., 0])
    for i in range(x.shape[-1]):
        total = total + x[..., i]
    return total


def sum_in_16_bits(x: Tensor) -> Tensor:
    """What no right kernel does."""
    total = torch.zeros_like(x[..., 0])
    for i in range(x.shape[-1]):
        total = (total + x[..., i]).to(torch.bfloat16).to(x.dtype)
    return total


def _split(x: Tensor) -> Tensor:
    """Every fourth term to one of four sums, as threads do."""
    return torch.stack([x[..., i::4].sum(-1) for i in range(4)]).sum(0)


def _compensated(x: Tensor) -> Tensor:
    total, lost = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
    for i in range(x.shape[-1]):
        y = x[..., i] - lost
        new = total + y
        lost, total = (new - total) - y, new
    return total


SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "reversed": lambda x: x.flip(-1).sum(-1),
    "pairs": _pairs,
    "one by one": _one_by_one,
    "split": _split,
    "compensated": _compensated,
    "float64": lambda x: x.double().sum(-1).to(x.dtype),
}


def _newton_rsqrt(x: Tensor) -> Tensor:
    y = x.rsqrt() * (1 + 1e-4)
    for _ in range(2):
        y = y * (1.5 - 0.5 * x * y * y)
    return y


ROOTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rsqrt": torch.rsqrt,
    "1 / sqrt": lambda x: 1 / x.sqrt(),
    "newton": _newton_rsqrt,
}
