"""The few values that each simulated kernel rounds to."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from .batched import batched
from .given import Choice
from .simulation import Operands, Simulation


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
