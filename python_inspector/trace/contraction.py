"""Sums of products whose product alone would fill the memory.

transformers' scans multiply two tensors into one of hundreds of millions of elements, which the
next operation sums: for Zamba2-2.7B 335 M of each chunk of 256 tokens, 2.7 GB in float64 for each
sample. Here such a product waits. Its sum is made as the matrix product that every kernel of it
computes; for whatever else uses it, it is made first.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from ..format.axes import broadcast_shape
from .operations import tensors

aten = torch.ops.aten

LARGE = 1 << 20
"""Elements from which on a product waits,"""
TIMES = 4
"""and how many times more they are than those of either operand."""


@dataclass
class Contraction:
    """(a * b).sum(axes, keepdim): `axes` count from the front of the product's `shape`."""

    a: torch.Tensor
    b: torch.Tensor
    shape: torch.Size
    axes: list[int]
    keepdim: bool

    @property
    def terms(self) -> int:
        return math.prod(self.shape[axis] for axis in self.axes)

    def of(self, a: torch.Tensor, b: torch.Tensor, rows: tuple[bool, bool]) -> torch.Tensor:
        """Of other operands with these shapes; `rows` says which have rows of samples in front."""
        rank = len(self.shape)
        left = [axis for axis in range(rank) if axis not in self.axes]
        operands: list[Any] = []
        for t, has_rows in zip((a, b), rows, strict=True):
            own = t.ndim - has_rows
            operands += [t, [rank] * has_rows + list(range(rank - own, rank))]
        result = torch.einsum(*operands, [rank] * any(rows) + left).contiguous()
        if self.keepdim:
            for axis in self.axes:
                result = result.unsqueeze(axis + any(rows))
        return result


@dataclass
class _Waiting:
    stand_in: weakref.ref[torch.Tensor]
    a: torch.Tensor
    b: torch.Tensor
    make: Callable[[], torch.Tensor]


class Products:
    """What a dispatch mode knows of the products that wait; each operation asks it first."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}

    def wait(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        dtype: torch.dtype,
        make: Callable[[], torch.Tensor],
    ) -> torch.Tensor | None:
        """A placeholder for a large product, in `dtype`; None where it is to be made now."""
        if func is not aten.mul.Tensor:
            return None
        a, b = args
        if not isinstance(b, torch.Tensor) or a.device != b.device:
            return None
        if a.numel() * b.numel() < LARGE:
            return None
        shape = broadcast_shape(a, b)
        if shape is None:
            return None
        a, b = _stored(a, b), _stored(b, a)
        if a.shape == b.shape:  # most: no larger than an operand
            return None
        most = max(a.numel(), b.numel(), LARGE // TIMES)
        if math.prod(shape) < TIMES * most or not (a.is_floating_point() and b.is_floating_point()):
            return None
        one = torch.empty(1, dtype=dtype, device=a.device).untyped_storage()
        stand_in = torch.empty(0, dtype=dtype, device=a.device)
        stand_in.set_(one, 0, shape, [0] * len(shape))
        self._waiting[one._cdata] = _Waiting(weakref.ref(stand_in), a, b, make)
        return stand_in

    def summed(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Contraction | None:
        """The sum of a product that waits, where this is one; makes those that it uses otherwise,
        or whose operands it may change."""
        if not self._waiting:
            return None
        self._waiting = {k: it for k, it in self._waiting.items() if it.stand_in() is not None}
        if func is aten.sum.dim_IntList and not kwargs and args[1]:
            waiting = self._waiting.get(args[0].untyped_storage()._cdata)
            if waiting is not None:
                shape = args[0].shape
                axes = sorted(axis % len(shape) for axis in args[1])
                keepdim = len(args) > 2 and args[2]
                return Contraction(waiting.a, waiting.b, shape, axes, keepdim)
        used = {t.untyped_storage()._cdata for t in tensors((args, kwargs))}
        for key, waiting in list(self._waiting.items()):
            changed = func._schema.is_mutable and any(
                t.untyped_storage()._cdata in used for t in (waiting.a, waiting.b)
            )
            if key in used or changed:
                self._make(key)
        return None

    def finish(self) -> None:
        """Makes those that the run returned, or left behind."""
        if not self._waiting:
            return
        with _disable_current_modes():
            for key in list(self._waiting):
                self._make(key)

    def _make(self, key: int) -> None:
        waiting = self._waiting.pop(key)
        stand_in = waiting.stand_in()
        if stand_in is not None:
            made = waiting.make()
            start, shape, strides = made.storage_offset(), made.shape, made.stride()
            stand_in.set_(made.untyped_storage(), start, shape, strides)


def _stored(t: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`t` as its storage holds it along the axes that `other` has itself: a sum's gradient is
    expanded to the shape of its terms, and no larger than it was."""
    for axis in range(-min(t.ndim, other.ndim), 0):
        if t.stride(axis) == 0 and other.stride(axis) and t.shape[axis] == other.shape[axis]:
            t = t.narrow(axis, 0, 1)
    return t
