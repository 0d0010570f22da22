"""Operations in place, done on copies of what they write to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from .batched import batched
from .simulation import Operands, Simulation


class RoundedRunError(RuntimeError):
    """Code whose arithmetic is not seen, or cannot be done in float64."""


def written(
    func: OpOverload, args: list[Any], operands: Operands, simulation: Simulation
) -> tuple[torch.Tensor, bool]:
    """The operation done on a copy of its target, and whether that is a stack."""
    target = args[0]
    if not operands.stacked:
        target = target.clone()
        func(target, *args[1:], **operands.kwargs)
        return target, False
    rows = simulation.rows
    if operands.has_rows(target):
        target = target.clone()
    else:
        target = simulation.spread_out(target, stacked=False)

    def has_rows(value: Any) -> bool:
        return value is target or operands.has_rows(value)

    batched(func, [target, *args[1:]], operands.kwargs, has_rows, rows)
    return target, True


def target_of(func: OpOverload, args: Sequence[Any]) -> torch.Tensor:
    """The one tensor that an operation writes to; it is the first argument."""
    written = [
        i
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if written != [0] or not isinstance(args[0], torch.Tensor):
        raise RoundedRunError(f"[rounded] {func} writes to other arguments than its first")
    return args[0]
