"""Operations that round to few values: casts to 8 bits, and to whole numbers.

Where a value lies near the middle of two, a scale that is applied as a reciprocal brings it over:
both are right. The float64 run follows the reference's; each simulated kernel has its own, which
moves what is computed of it as in a kernel. So it is no other function, and all that is computed
is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from .batched import batched
from .simulation import Operands, Simulation

if TYPE_CHECKING:
    from .given import Choice

aten = torch.ops.aten

QUANTISED = {
    value
    for name, value in vars(torch).items()
    if name.startswith(("float8_", "float4_")) and isinstance(value, torch.dtype)
}
_CODES = {torch.int8, torch.uint8, *QUANTISED}
_ROUNDS = {aten.round.default, aten.round.decimals}
SCALES = {"mul", "div"}
"""What brings values to where they are rounded: a reciprocal in place of either is another one."""


def quantises(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether numbers that are not of few values become such."""
    if func not in _ROUNDS and func is not aten._to_copy.default:
        return False
    x = args[0]
    if not x.is_floating_point() or x.dtype in QUANTISED:
        return False
    return func in _ROUNDS or kwargs.get("dtype") in _CODES


def codes_of_rows(
    func: OpOverload, operands: Operands, simulation: Simulation, choice: Choice
) -> torch.Tensor:
    """The reference's values, or a stack where simulated kernels round some otherwise. What is
    right at those is noted in the choice."""
    held = choice.held[0]
    if not operands.stacked:
        return held
    stack = batched(func, operands.args, operands.kwargs, operands.has_rows, simulation.rows)
    wide = stack.double()
    own = wide != wide[:1]
    if not bool(own.any()):
        return held
    stack = torch.where(own, wide, held.double()).to(held.dtype)
    doubtful = own.any(0)
    choice.doubtful = doubtful if choice.doubtful is None else choice.doubtful | doubtful
    wide = stack.double()
    choice.others += [wide.amin(0).to(held.dtype), wide.amax(0).to(held.dtype)]
    return stack


def inexact(exact: torch.Tensor) -> torch.Tensor:
    """Where a float32 result is rounded."""
    return exact.float().double() != exact
