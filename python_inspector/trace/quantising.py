"""Operations that round to few values: casts to 8 bits, and to whole numbers.

Where a value is near the middle of two, a scale that is applied as a reciprocal brings it over:
both are right. The float64 run follows the reference's; each simulated kernel has its own, which
moves what is computed of it as in a kernel. So it is no other function, and all that is computed
is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from .operations import MAKERS, MOVES, tensors

aten = torch.ops.aten

QUANTISED = {
    value
    for name, value in vars(torch).items()
    if name.startswith(("float8_", "float4_")) and isinstance(value, torch.dtype)
}
CODES = {torch.int8, torch.uint8, *QUANTISED}
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
    return func in _ROUNDS or kwargs.get("dtype") in CODES


def casts_in_place(func: OpOverload, args: Sequence[Any]) -> bool:
    """Whether numbers are copied to codes, which casts them."""
    if func is not aten.copy_.default or args[0].dtype not in CODES:
        return False
    return bool(args[1].is_floating_point()) and args[1].dtype not in QUANTISED


def moves_codes(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a result of codes is made of codes, and nothing is rounded."""
    name, given = func._schema.name.partition("::")[2].rstrip("_"), tensors((args, kwargs))
    if name in MAKERS or not given:
        return True
    floats = (t.dtype for t in given if t.is_floating_point())
    return name in MOVES and all(dtype in QUANTISED for dtype in floats)


def reads_bits_of_codes(func: OpOverload, args: Sequence[Any]) -> bool:
    """Whether codes are looked at as bytes: that is what they are, whichever was chosen."""
    return func is aten.view.dtype and args[0].dtype in QUANTISED


def scaled_inexactly(name: str, args: Sequence[Any], exact: torch.Tensor) -> torch.Tensor:
    """Where a float32 result is rounded, of a quotient also where the divisor's reciprocal is: a
    tie of `x / s` may be none of `x * (1 / s)`."""
    rounded = exact.float().double() != exact
    if name != "div":
        return rounded
    divisor = torch.as_tensor(args[1], dtype=torch.float64, device=exact.device)
    return rounded | (torch.frexp(divisor).mantissa.abs() != 0.5)
