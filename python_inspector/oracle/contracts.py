"""What else a kernel may do inside where it is asked for: one table, one spelling.

`eager+sums-16` is a place of roundings and what happens inside, joined by a plus. Simulated kernels
do it, too, and what they show of an output is its limit. Nothing of it is allowed unasked: it
loses what the reference does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .simulation import NARROW, Noise

ROUNDINGS = ("inferred", "eager", "fused")
INSIDE = {
    "sums-16": "sums that are stored in 16 bits accumulate in them",
    "p-16": "what the code keeps in float32 is rounded to 16 bits where it is multiplied: an "
    "attention's weights, the blocks of a linear attention",
    "reduce-16": "parts of a product, of several devices or along its terms, are added in 16 bits",
}
PARTS = 8
"""Of a product that is reduced: devices, or what cuBLAS splits along its terms."""

UNITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
_ONE = 0.43 / 1.5
"""The deviation of a rounding, in units of u."""
_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
_SUMS = {*_PRODUCTS, "sum", "mean", "cumsum", "convolution", "mv", "dot"}


@dataclass(frozen=True)
class Asked:
    """A contract as it was spelled."""

    rounding: str | None = None
    """None: inferred from the bits."""
    inside: frozenset[str] = frozenset()


def asked(contract: str | None) -> Asked:
    """ValueError, with all that there is, for what is none."""
    words = [] if contract is None else contract.split("+")
    roundings = [word for word in words if word in ROUNDINGS]
    inside = frozenset(word for word in words if word in INSIDE)
    unknown = [word for word in words if word not in ROUNDINGS and word not in INSIDE]
    if unknown or len(roundings) > 1:
        raise ValueError(
            f"contract is {contract!r}: {(unknown or roundings[1:])[0]!r} is none; one of "
            f"{', '.join(ROUNDINGS)}, and any of {', '.join(INSIDE)}, joined by +"
        )
    rounding = roundings[0] if roundings else None
    return Asked(None if rounding == "inferred" else rounding, inside)


@dataclass(frozen=True)
class Inside:
    """What simulated kernels do beside float32 arithmetic, in a call of 16 bits."""

    names: frozenset[str]
    narrow: torch.dtype

    def noise(
        self,
        name: str,
        args: Sequence[Any],
        exact: torch.Tensor,
        stores: torch.dtype,
        usual: Sequence[Noise],
    ) -> list[Noise]:
        """Of one operation: `usual` is what float32 sums are off by."""
        out: list[Noise] = []
        u = UNITS[self.narrow]
        if "sums-16" in self.names and name in _SUMS and stores in NARROW:
            out += [Noise(part.scale * (u / _U32), part.times) for part in usual]
        if name not in _PRODUCTS:
            return out
        a, b = (args[i] for i in _PRODUCTS[name])
        if "p-16" in self.names and stores not in NARROW:
            out.append(Noise(2**0.5 * _ONE * u * _together(a, b)))
        if "reduce-16" in self.names and stores in NARROW:
            partial = torch.maximum(_together(a, b), exact.abs())
            out.append(Noise(_ONE * u * PARTS**0.5 * partial))
        return out

    def of_attention(
        self, weights: torch.Tensor, v: torch.Tensor, off: torch.Tensor
    ) -> torch.Tensor:
        """What float32 sums are `off` by, and what is asked for beside it; weights as they divide
        to 1."""
        u = UNITS[self.narrow]
        if "sums-16" in self.names:
            off = off * (1 + u / _U32)
        if "p-16" in self.names:
            off = torch.hypot(off, _ONE * u * _together(weights, v))
        return off


_U32 = 2.0**-24


def _together(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What independent relative errors of all products make of their sum."""
    squares = torch.matmul(a.double().square(), b.double().square())
    return squares.sqrt()
