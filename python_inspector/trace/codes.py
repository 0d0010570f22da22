"""The few values that each simulated kernel rounds to."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from .batched import batched
from .choices import TIMES
from .given import Choice
from .simulation import Operands, Simulation

_ROUNDING = 2.0**-16
"""Of a value: more than this is no rounding of float32, and simulated kernels alone tell."""


def codes_of_rows(
    func: OpOverload, operands: Operands, simulation: Simulation | None, choice: Choice
) -> torch.Tensor:
    """The reference's values, or a stack where simulated kernels round some otherwise. What is
    right at those is noted in the choice. No simulation: none of them does."""
    held = choice.held[0]
    if not operands.stacked or simulation is None:
        return held
    stack = batched(func, operands.args, operands.kwargs, operands.has_rows, simulation.rows)
    _near_ties(func, operands, choice)
    wide = stack.double()
    own = wide != wide[:1]
    if not bool(own.any()):
        return held
    stack = torch.where(own, wide, held.double()).to(held.dtype)
    wide = stack.double()
    _open(choice, [wide.amin(0).to(held.dtype), wide.amax(0).to(held.dtype)])
    return stack


def _near_ties(func: OpOverload, operands: Operands, choice: Choice) -> None:
    """A value that rounding leaves near the middle of two may become either, also where no
    simulated kernel has the other."""
    if choice.operands is None or not operands.has_rows(operands.args[0]):
        return
    exact = choice.operands[0][0].double()
    off = operands.args[0].double() - exact
    tolerance = TIMES * off.square().mean(0).sqrt()
    tolerance = torch.where(tolerance <= exact.abs() * _ROUNDING, tolerance, 0.0)
    others = [
        func(value, *operands.args[1:], **operands.kwargs).to(choice.held[0].dtype)
        for value in (exact - tolerance, exact + tolerance)
    ]
    if not torch.equal(others[0].double(), others[1].double()):
        held = choice.held[0].double()
        same = others[0].double() == others[1].double()
        _open(choice, [torch.where(same, held, it.double()).to(it.dtype) for it in others])


def _open(choice: Choice, others: list[torch.Tensor]) -> None:
    """Notes what is right next to the reference's values."""
    doubtful = torch.stack([it.double() != choice.held[0].double() for it in others]).any(0)
    choice.doubtful = doubtful if choice.doubtful is None else choice.doubtful | doubtful
    choice.others += others
