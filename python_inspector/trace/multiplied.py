"""Products that the code writes as multiplications and sums, as linear attentions do:
`(q[..., None] * k).sum(-1)`, `state + k[..., None] * v[..., None, :]`. What was multiplied is
remembered, so that its sum is known for what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from .arithmetic import name_of
from .simulation import NARROW

aten = torch.ops.aten

_MULTIPLIES = (aten.mul.Tensor, aten.mul_.Tensor)
_SUMS = ("sum", "cumsum")
_ADDS = (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor)


class Multiplied:
    """The storages that hold products of two tensors, term by term, in float32 or wider; none
    where they are not `wanted`."""

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted
        self._held: dict[int, tuple[StorageWeakRef, bool]] = {}
        """By its address, which the reference keeps from being used again, whether it holds the
        outer product of both."""

    def after(self, func: OpOverload, args: tuple[Any, ...], result: Any) -> None:
        """Of each operation of a run, in order."""
        if not self._wanted:
            return
        if func in _MULTIPLIES and _are_factors(*args) and result.dtype not in NARROW:
            self.hold(result, outer=result.numel() > max(t.numel() for t in args))
        elif func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            self._held.pop(args[0].untyped_storage()._cdata, None)

    def hold(self, product: torch.Tensor, *, outer: bool) -> None:
        storage = product.untyped_storage()
        if self._wanted:
            self._held[storage._cdata] = StorageWeakRef(storage), outer

    def added(self, func: OpOverload, args: tuple[Any, ...], kwargs: Any) -> tuple[int, ...]:
        """Which arguments are products that the operation sums; of an addition outer ones, each a
        term of a sum over tokens."""
        if not self._held:
            return ()
        if name_of(func) in _SUMS:
            return (0,) if self._holds(args[0]) is not None else ()
        if func in _ADDS and not kwargs:
            return tuple(i for i in (0, 1) if self._holds(args[i]))
        return ()

    def _holds(self, t: Any) -> bool | None:
        if not isinstance(t, torch.Tensor):
            return None
        return self._held.get(t.untyped_storage()._cdata, (None, None))[1]


def _are_factors(a: Any, b: Any) -> bool:
    """A square belongs to a norm, which no kernel computes in matrix products; a number scales."""
    return a is not b and all(isinstance(t, torch.Tensor) and t.ndim for t in (a, b))


def together(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], products: Sequence[int]
) -> torch.Tensor:
    """What independent relative errors of all these products make of their sum."""
    squares: list[torch.Tensor] = [args[i].square() for i in products]
    if func in _ADDS:
        return torch.stack(torch.broadcast_tensors(*squares)).sum(0).sqrt()
    summed: torch.Tensor = func(squares[0], *args[1:], **kwargs)
    return summed.sqrt()
