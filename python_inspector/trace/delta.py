"""Attention's backward as fused kernels have it: the sum of y g that its softmax takes off each row
is made of the output and its gradient, sum O dO, of an output that was rounded to 16 bits.

That is off by the same for all of a row, and not 0 where eager code's is: in a row with one key,
whose scores have no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from .arithmetic import name_of
from .contracts import UNITS
from .simulation import Noise

aten = torch.ops.aten

_PRODUCTS = {"mm", "bmm"}
_PASS_ON = {
    "_to_copy", "clone", "mul", "div", "where", "masked_fill", "slice_backward",
    "native_dropout_backward",
}  # fmt: skip
"""What is done between a product and the softmax in front of it: casts, scales, masks."""
Factors = tuple[torch.Tensor, torch.Tensor]


class Delta:
    """Which gradients of a run's softmaxes come of a product, as those of attention's weights do;
    none of a run whose tensors are not `narrow`."""

    def __init__(self, narrow: torch.dtype | None) -> None:
        self._off = 0.0 if narrow is None else UNITS[narrow] / 2
        self._products: dict[int, tuple[StorageWeakRef, Factors]] = {}
        """By a storage's address, which the reference keeps from being used again."""
        self._of: Factors | None = None

    def before(self, func: OpOverload, args: Sequence[Any]) -> None:
        """Of each operation of a run, in order."""
        self._of = None
        if func is aten._softmax_backward_data.default and self._off:
            self._of = self._factors(args[0])
            self._products.clear()

    def after(self, func: OpOverload, args: Sequence[Any], result: Any) -> None:
        """A forward's products are not held."""
        if not self._off or not isinstance(result, torch.Tensor) or not _goes_back():
            return
        name = name_of(func)
        if name in _PRODUCTS:
            factors: Factors | None = (args[0], args[1])
        else:
            factors = self._factors(args[0]) if name in _PASS_ON else None
        if factors is not None:
            self._products = {k: it for k, it in self._products.items() if not it[0].expired()}
            storage = result.untyped_storage()
            self._products[storage._cdata] = StorageWeakRef(storage), factors

    def noise(self, args: Sequence[Any]) -> list[Noise]:
        """Of the operation at hand, which is given these: roundings of outputs, and of the weights
        that they are made of."""
        if self._of is None:
            return []
        g, y, axis = args[:3]
        squares = (g * y).square().sum(axis, keepdim=True)
        return [Noise(self._off * (squares + self._of_outputs(self._of, y)).sqrt(), y)]

    @staticmethod
    def _of_outputs(factors: Factors, y: torch.Tensor) -> torch.Tensor | float:
        """sum (dO O)^2 of each row, where g = dO V^T; nothing where it is laid out otherwise."""
        gradients, values = (t.double() for t in factors)
        product = (*gradients.shape[:-1], values.shape[-1])
        if product[-2:] != y.shape[-2:] or y.numel() != torch.Size(product).numel():
            return 0.0
        outputs = y.reshape(product) @ values.mT
        return (gradients * outputs).square().sum(-1).reshape(*y.shape[:-1], 1)

    def _factors(self, t: Any) -> Factors | None:
        if not isinstance(t, torch.Tensor):
            return None
        return self._products.get(t.untyped_storage()._cdata, (None, None))[1]


def _goes_back() -> bool:
    """Whether autograd calls what runs."""
    return torch._C._current_graph_task_id() != -1
