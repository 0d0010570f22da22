"""Products that accumulate as tensor cores do: blocks of 16 exact products, then truncation.

The sum so far is float32; adding a block to it cuts the result off toward zero. One cut loses
between 0 and one unit in the last place of the sum, anywhere in between with equal chance; so the
loss over all blocks has a mean and a variance that follow from the path of the sum. A simulated
kernel's loss is drawn from these.
"""

from __future__ import annotations

import torch

from python_inspector.simulation import Operands, Simulation

BLOCK = 16
LEAST_TERMS = 1024
"""Sums shorter than this lose less than other orders do: they are not simulated."""
_OPERANDS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
_SIGN_AND_EXPONENT = -(1 << 23)  # 0xff800000: what is left of a float32 is plus or minus 2^e


def applies(name: str) -> bool:
    return name in _OPERANDS


def truncated(
    name: str, operands: Operands, exact: torch.Tensor, stacked: bool, simulation: Simulation
) -> torch.Tensor:
    """The stack of results before rounding; the rounded model's is exact."""
    first, _ = operands.first_row()
    a, b = (first[i] for i in _OPERANDS[name])
    mean, variance = loss(a, b)
    out = simulation.spread_out(exact, stacked)
    out[1:] -= mean
    return simulation.perturb(out, variance.sqrt(), stacked=True)


def loss(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of what the product a @ b loses, in the direction of its partial sums."""
    a, b = a.float(), b.float()
    total = torch.matmul(a[..., :BLOCK], b[..., :BLOCK, :])
    signed, squares = torch.zeros_like(total), torch.zeros_like(total)
    for start in range(BLOCK, a.shape[-1], BLOCK):  # the first block is added to zero
        block = slice(start, start + BLOCK)
        total += torch.matmul(a[..., block], b[..., block, :])
        power = (total.view(torch.int32) & _SIGN_AND_EXPONENT).view(torch.float32)
        signed += power
        squares += power * power
    ulp = 2.0**-23
    return signed.double() * (ulp / 2), squares.double() * (ulp * ulp / 12)
