"""Tensors that hold what an operation gave whose inside is not seen, and nothing computed of it.

The reference itself would be the oracle of such a result: its own kernel would pass unjudged, and
one that rounds otherwise fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from .arithmetic import name_of
from .operations import is_inexact, moves, tensors
from .storages import Storages


class Unseen:
    """Of one run."""

    def __init__(self) -> None:
        self._held = Storages()

    def given(self, func: OpOverload, result: Any) -> None:
        """An opaque operation gave it: numbers, or the bits of some."""
        for t in tensors(result):
            if is_inexact(t) or func is torch.ops.aten.view.dtype:
                self._held.add(t)

    def computed(self, func: OpOverload, args: Sequence[Any], kwargs: Any, result: Any) -> None:
        """An operation that moves such numbers alone gives such numbers; any other writes over
        them."""
        if func.is_view:
            return
        numbers = list(filter(is_inexact, tensors((args, kwargs))))
        name = name_of(func)
        if func._schema.is_mutable and name in ("copy", "fill", "zero"):
            numbers = numbers[1:]
        held = bool(numbers) and all(t in self._held for t in numbers)
        for t in tensors(result):
            if held and moves(func, name, args):
                self._held.add(t)
            else:
                self._held.discard(t)

    def __contains__(self, t: torch.Tensor) -> bool:
        return t in self._held
