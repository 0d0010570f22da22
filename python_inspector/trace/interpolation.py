"""torch's interpolations as one operation each, whose positions are float32 numbers, too.

An element of the result is at a place between elements of the operand. That place is computed in
float32, so it is off by a rounding of itself: the further from the beginning, the more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from .arithmetic import ROUNDING, U, of_sum
from .simulation import Noise

_TERMS = {
    "upsample_linear1d": 2, "upsample_bilinear2d": 2, "upsample_trilinear3d": 2,
    "upsample_bicubic2d": 4, "_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 4,
    "_upsample_lanczos2d_aa": 6,
}  # fmt: skip
"""Elements of one axis that one of the result is made of; against aliases of so many as large
steps."""
_ROUNDINGS = ROUNDING * 2**0.5
"""RMS, in u, of the two that a position has: it is multiplied, and a half is added."""
_POOLS = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)


_SAMPLERS = {"grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler"}
"""Whose positions are an operand, from -1 to 1: one is added, all is multiplied, a half is
subtracted."""
_STEP = 2.0**-8
"""Of a position, in elements, by which a result's slope is measured."""


def interpolates(name: str) -> bool:
    return name in _TERMS or name in _SAMPLERS


def of_positions(name: str, func: Any, args: Sequence[Any], exact: torch.Tensor) -> list[Noise]:
    """What sums and positions in float32 are off by, `args` being float64."""
    if name in _SAMPLERS:
        return _of_grid(func, args, exact)
    x, rest = args[0], args[1:]
    axes = range(2, x.ndim)
    terms = [_terms(name, x.shape[axis], exact.shape[axis]) for axis in axes]
    parts = [Noise(of_sum(func(x.abs(), *rest).abs(), exact, math.prod(terms)))]
    for axis, count in zip(axes, terms, strict=True):
        step = func(_range(x, axis, count), *rest).abs()
        n = exact.shape[axis]
        place = torch.linspace(1, x.shape[axis], n, dtype=exact.dtype, device=exact.device)
        parts.append(Noise(_ROUNDINGS * U * place.reshape(-1, *[1] * (x.ndim - 1 - axis)) * step))
    return parts


def _of_grid(func: Any, args: Sequence[Any], exact: torch.Tensor) -> list[Noise]:
    x, grid, *rest = args
    sizes = func(x.abs(), grid, *rest)
    if rest and rest[0] == 2:  # bicubic: some weights are negative, of all together less than 2
        most = x.abs().amax([*range(2, x.ndim)], keepdim=True)
        sizes = torch.where(exact == 0, 0.0, 2 * most)
    parts = [Noise(of_sum(sizes, exact, _TERMS["upsample_bicubic2d"] ** (x.ndim - 2)))]
    for axis in range(grid.shape[-1]):
        half = x.shape[-1 - axis] / 2  # elements from 0 to 1
        step = torch.zeros_like(grid)
        step[..., axis] = _STEP / half
        slope = (func(x, grid + step, *rest) - func(x, grid - step, *rest)) / (2 * _STEP)
        place = half * (grid[..., axis].abs() + 1).unsqueeze(1)
        parts.append(Noise(3**0.5 * ROUNDING * U * place * slope.abs()))
    return parts


def _range(x: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    """How far elements of an axis differ from those that are combined with them."""
    reach = [count // 2 * 2 + 1 if axis == other else 1 for other in range(2, x.ndim)]
    beside = [n // 2 for n in reach]
    pool = _POOLS[x.ndim - 3]
    return pool(x, reach, 1, beside) + pool(-x, reach, 1, beside)


def _terms(name: str, n: int, made: int) -> int:
    wide = max(1.0, n / made) if name.endswith("_aa") else 1.0
    return math.ceil(_TERMS[name] * wide)
