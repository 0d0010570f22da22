"""Products that the code writes as multiplications and sums, as linear attentions do:
`(q[..., None] * k).sum(-1)`, `state + k[..., None] * v[..., None, :]`. What was multiplied is
remembered, so that its sum is known for what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from .arithmetic import name_of
from .simulation import NARROW, Change

aten = torch.ops.aten

_MULTIPLIES = (aten.mul.Tensor, aten.mul_.Tensor)
_SUMS = ("sum", "cumsum")
_ADDS = (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor)


@dataclass(frozen=True)
class Product:
    """The shape of a product of two tensors, term by term, and theirs."""

    shape: torch.Size
    factors: tuple[torch.Size, torch.Size]

    @property
    def outer(self) -> bool:
        return all(shape.numel() < self.shape.numel() for shape in self.factors)

    def changed(self, terms: torch.Tensor, change: Change) -> torch.Tensor:
        """Its terms, of changed factors. In a view of another shape each term has its own."""
        for shape in self.factors if terms.shape == self.shape else [terms.shape] * 2:
            terms = terms * change(terms.new_ones(shape))
        return terms


Added = tuple[tuple[int, Product], ...]
"""Which arguments of an operation are products that it adds."""


class Multiplied:
    """The storages that hold products of two tensors in float32 or wider; none where they are not
    `wanted`."""

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted
        self._held: dict[int, tuple[StorageWeakRef, Product]] = {}
        """By a storage's address, which the reference keeps from being used again."""

    def after(self, func: OpOverload, args: tuple[Any, ...], result: Any) -> None:
        """Of each operation of a run, in order."""
        if not self._wanted:
            return
        if func in _MULTIPLIES and _are_factors(*args) and result.dtype not in NARROW:
            self.hold(result, *args)
        elif func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            self._held.pop(args[0].untyped_storage()._cdata, None)

    def hold(self, product: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        storage = product.untyped_storage()
        if self._wanted:
            held = Product(product.shape, (a.shape, b.shape))
            self._held[storage._cdata] = StorageWeakRef(storage), held

    def added(self, func: OpOverload, args: tuple[Any, ...], kwargs: Any) -> Added:
        """Which arguments are products that the operation sums; of an addition outer ones, each a
        term of a sum over tokens."""
        if not self._held:
            return ()
        sums = name_of(func) in _SUMS
        if not sums and (func not in _ADDS or kwargs):
            return ()
        held = [(i, self._of(args[i])) for i in ((0,) if sums else (0, 1))]
        return tuple((i, it) for i, it in held if it is not None and (sums or it.outer))

    def _of(self, t: Any) -> Product | None:
        if not isinstance(t, torch.Tensor):
            return None
        return self._held.get(t.untyped_storage()._cdata, (None, None))[1]


def _are_factors(a: Any, b: Any) -> bool:
    """A square belongs to a norm, which no kernel computes in matrix products; a number scales."""
    return a is not b and all(isinstance(t, torch.Tensor) and t.ndim for t in (a, b))


def summed(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], added: Added, change: Change
) -> torch.Tensor:
    """The sum of products of changed factors, without what else is added."""
    terms = [product.changed(args[i], change) for i, product in added]
    if func in _ADDS:
        return torch.stack(torch.broadcast_tensors(*terms)).sum(0)
    result: torch.Tensor = func(terms[0], *args[1:], **kwargs)
    return result
