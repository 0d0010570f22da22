"""Tensors made by rule: a recording states the rule instead of holding the values.

Integer arithmetic and one rounding, so that harness/generator.cpp has the same bits; the same on
every device. Inputs and weights of published size take no room this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import FormatError

KIND = "splitmix64"
MEAN_OF_SUM = 131070  # of four numbers in [0, 65535]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EXPONENTS = range(-40, 1)
UNIT = -15
"""The exponent for which sigma is 1.155."""
_CHUNK = 1 << 24
_STEP = -0x61C8864680B583EB  # 0x9e3779b97f4a7c15 as a signed number, as are the next two
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


@dataclass(frozen=True)
class Generator:
    """Element i is offset + s 2^exponent in float32, rounded to the dtype; s is the sum of the four
    16-bit quarters of splitmix64(seed, i) less its mean: near normal, sigma 37837."""

    seed: int
    exponent: int
    offset: int = 0
    """1 for the weights of a norm."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 63:
            raise FormatError(f"seed {self.seed} is not in 0 to 2^63 - 1")
        if self.exponent not in EXPONENTS or self.offset not in (0, 1):
            raise FormatError(
                f"a generator of exponent {self.exponent} and offset {self.offset}; expected an "
                f"exponent of {EXPONENTS.start} to {EXPONENTS.stop - 1} and an offset of 0 or 1"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "seed": self.seed,
            "exponent": self.exponent,
            "offset": self.offset,
        }


def generate(
    generator: Generator,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """The tensor that `generator` describes; FormatError for another dtype than f32, f16, bf16."""
    if dtype not in DTYPES:
        raise FormatError(f"{dtype} cannot be generated; known are {', '.join(map(str, DTYPES))}")
    out = torch.empty(shape, dtype=dtype, device=device)
    flat = out.reshape(-1)
    for begin in range(0, flat.numel(), _CHUNK):
        end = min(begin + _CHUNK, flat.numel())
        h = splitmix64(generator.seed, begin, end, device)
        quarters = [_shift(h, bits) & 0xFFFF for bits in (0, 16, 32, 48)]
        sums = torch.stack(quarters).sum(0)
        values = (sums - MEAN_OF_SUM).float() * 2.0**generator.exponent  # exact
        flat[begin:end] = (values + float(generator.offset)).to(dtype)
    return out


def splitmix64(seed: int, begin: int, end: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Outputs `begin` to `end` - 1 of SplitMix64 from `seed`, as signed 64-bit numbers."""
    z = torch.arange(begin + 1, end + 1, dtype=torch.int64, device=device) * _STEP + seed
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def _shift(z: torch.Tensor, bits: int) -> torch.Tensor:
    """z >> bits, zeros coming in."""
    return (z >> bits) & ((1 << (64 - bits)) - 1) if bits else z
