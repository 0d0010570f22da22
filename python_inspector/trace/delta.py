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

from .arithmetic import name_of
from .contracts import UNITS
from .simulation import Noise
from .storages import Storages

aten = torch.ops.aten

_PRODUCTS = {"mm", "bmm"}
_PASS_ON = {
    "_to_copy", "clone", "mul", "div", "where", "masked_fill", "slice_backward",
    "native_dropout_backward",
}  # fmt: skip
"""What is done between a product and the softmax in front of it: casts, scales, masks."""


class Delta:
    """Which gradients of a run's softmaxes come of a product, as those of attention's weights do;
    none of a run whose tensors are not `narrow`."""

    def __init__(self, narrow: torch.dtype | None) -> None:
        self._u = 0.0 if narrow is None else UNITS[narrow] / 2
        self._of_products = Storages()
        self._applies = False

    def before(self, func: OpOverload, args: Sequence[Any]) -> None:
        """Of each operation of a run, in order."""
        is_softmax = func is aten._softmax_backward_data.default
        self._applies = is_softmax and self._u > 0 and args[0] in self._of_products

    def after(self, func: OpOverload, args: Sequence[Any], result: Any) -> None:
        if not self._u or not isinstance(result, torch.Tensor):
            return
        name = name_of(func)
        passes = name in _PASS_ON and isinstance(args[0], torch.Tensor)
        if name in _PRODUCTS or (passes and args[0] in self._of_products):
            self._of_products.add(result)

    def noise(self, args: Sequence[Any]) -> list[Noise]:
        """Of the operation at hand, which is given these."""
        if not self._applies:
            return []
        g, y, axis = args[:3]
        row = (g.square() * y).sum(axis, keepdim=True).sqrt()
        return [Noise(self._u * row, y)]
