"""How quantised weights of a linear layer are stored, a row each.

A weight [out, in] is (code - zero) * scale, where a scale belongs to a group of codes: of so many
rows and columns as the shape of the scales says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .bits import LOW_FIRST

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""OCP Microscaling Formats 1.0, 5.3.3."""
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""Dettmers and others, 2023 (QLoRA), appendix E."""
INTERLEAVED = (0, 2, 4, 6, 1, 3, 5, 7)
"""AutoAWQ: awq/utils/packing_utils.py."""


@dataclass(frozen=True)
class Layout:
    """The first five are names of tensors, as files have them."""

    codes: str
    scales: str
    zeros: str | None = None
    global_scale: str | None = None
    """The scales are divided by it."""
    group_index: str | None = None
    """Of each column, the group that its scales and zeros are of; it may be left out."""
    about: str = ""
    grid: tuple[float, ...] | None = None
    """The values of codes; None: a code is its value."""
    word: int | None = None
    """Codes of 4 bits are packed in words of 32 or of 8 bits."""
    packed_axis: int = 1
    """Of the stored codes, the one along which a word of 32 bits has its codes."""
    order: tuple[int, ...] = LOW_FIRST
    """Of the eight codes of a word of 32 bits, from the lowest bits on."""
    high_first: bool = False
    """Of the two codes of a byte."""
    by_input: bool = False
    """All are stored [in, out]."""
    offset: int = 0
    """Is taken off each code."""
    zeros_axis: int | None = None
    """Along which axis zeros are packed as the codes are; None: they are not."""
    zeros_less_one: bool = False
    """Zeros are stored less 1."""
    exponents: bool = False
    """Scales are e8m0."""
    flat: int | None = None
    """A scale is of so many codes in a row, over all rows."""
    blocks: bool = False
    """Scales may be of several rows."""

    @property
    def names(self) -> list[str]:
        """Of all tensors, in the order of arguments."""
        rest = (self.zeros, self.global_scale, self.group_index)
        return [self.codes, self.scales, *(it for it in rest if it is not None)]


_CT = ("weight_packed", "weight_scale")
_GPTQ = Layout(
    "qweight", "scales", "qzeros", group_index="g_idx", about="GPTQ v2", word=32, packed_axis=0,
    by_input=True, zeros_axis=1,
)  # fmt: skip

LAYOUTS = {
    "int8": Layout("weight", "scale", about="codes of int8"),
    "int8-zero": Layout("weight", "scale", "zero_point", about="codes and zeros of int8"),
    "fp8": Layout("weight", "scale", about="codes of e4m3fn or e5m2", blocks=True),
    "mxfp8": Layout("weight", "scale", about="codes of e4m3fn or e5m2", exponents=True),
    "mxfp4": Layout(*_CT, about="compressed-tensors", grid=E2M1, word=8, exponents=True),
    "nvfp4": Layout(
        *_CT, global_scale="weight_global_scale", about="compressed-tensors", grid=E2M1, word=8
    ),
    "nf4": Layout(
        "weight", "absmax", about="bitsandbytes", grid=NF4, word=8, high_first=True, flat=64
    ),
    "int4": Layout(*_CT, about="compressed-tensors, symmetric", word=32, offset=8),
    "int4-zero": Layout(
        *_CT, zeros="weight_zero_point", about="compressed-tensors", word=32, zeros_axis=0
    ),
    "gptq": replace(_GPTQ, about="GPTQ v1", zeros_less_one=True),
    "gptq-v2": _GPTQ,
    "awq": replace(_GPTQ, about="AWQ", group_index=None, packed_axis=1, order=INTERLEAVED),
}
