"""Operations that torch rounds as the rounded model does, so that they need no float64.

A sum, product or quotient of numbers of p bits that is rounded to at least 2p + 2 bits, then to p,
is the one that is rounded once (Figueroa, "When is double rounding innocuous?", 1995). torch makes
16-bit ones in float32, and float32 ones are rounded once by IEEE 754.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_SUMS_AND_PRODUCTS = {"add", "sub", "rsub", "mul"}
_WITHOUT_ROUNDING = {
    "neg", "abs", "relu", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "amax", "amin",
}  # fmt: skip
_STORED = (torch.float32, torch.float16, torch.bfloat16)


def is_correctly_rounded(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], stores: torch.dtype
) -> bool:
    """Whether torch's result in `stores` has the bits of the exact one, rounded once."""
    if stores not in _STORED:
        return False
    if name in _SUMS_AND_PRODUCTS:  # with a factor they are two operations
        return len(args) == 2 and not kwargs and all(_is_taken(a, stores) for a in args)
    if name == "div":  # by a number a GPU divides with one rounding more
        tensors = len(args) == 2 and not kwargs and all(isinstance(a, torch.Tensor) for a in args)
        subnormal = stores == torch.float16  # where a quotient has fewer bits
        return tensors and not subnormal and all(_is_taken(a, stores) for a in args)
    if name in ("exp2", "pow") and not kwargs:
        return _is_power_of_two(args)
    if name in ("amax", "amin"):
        return _is_taken(args[0], stores)
    given = [a for a in (*args, *kwargs.values()) if a is not None]
    return name in _WITHOUT_ROUNDING and all(_is_taken(a, stores) for a in given)


def _is_power_of_two(args: Sequence[Any]) -> bool:
    """Whether 2 is raised to whole numbers: such a scale is exact."""
    *base, exponent = args
    of_two = all(isinstance(it, (int, float)) and it == 2 for it in base)
    if not of_two or not isinstance(exponent, torch.Tensor):
        return False
    return bool((exponent == exponent.round()).all())


def _is_taken(operand: Any, stores: torch.dtype) -> bool:
    """Whether an operand comes into the arithmetic as it is; a number is a float32 to that."""
    if isinstance(operand, torch.Tensor):
        return operand.dtype == stores or (stores == torch.float32 and operand.dtype in _STORED)
    if isinstance(operand, bool) or not isinstance(operand, (int, float)):
        return False
    exact = torch.tensor(operand, dtype=stores, device="cpu").item() == operand
    return stores == torch.float32 or exact
