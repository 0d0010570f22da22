"""How quantised weights of a linear layer are stored: the rows of kernels/ops/layout_list.h, with
the names that files have for their tensors.

A weight [out, in] is (code - zero) * scale, where a scale belongs to a group of codes: of so many
rows and columns as the shape of the scales says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .bits import LOW_FIRST
from .rows import rows

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
_GPTQ = ("qweight", "scales", "qzeros", "g_idx")
_NAMES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "int8": ("codes of int8", ("weight", "scale")),
    "int8-zero": ("codes and zeros of int8", ("weight", "scale", "zero_point")),
    "fp8": ("codes of e4m3fn or e5m2", ("weight", "scale")),
    "mxfp8": ("codes of e4m3fn or e5m2", ("weight", "scale")),
    "mxfp4": ("compressed-tensors", _CT),
    "nvfp4": ("compressed-tensors", (*_CT, "weight_global_scale")),
    "nf4": ("bitsandbytes", ("weight", "absmax")),
    "int4": ("compressed-tensors, symmetric", _CT),
    "int4-zero": ("compressed-tensors", (*_CT, "weight_zero_point")),
    "gptq": ("GPTQ v1", _GPTQ),
    "gptq-v2": ("GPTQ v2", _GPTQ),
    "awq": ("AWQ", _GPTQ[:3]),
}
"""Who writes it, and the names of those tensors that the layout has, in the order of Layout."""
_GRIDS = {"e2m1": E2M1, "nf4": NF4}
_WORDS = {"words": 32, "bytes": 8}
_PLACES = {"kInterleaved": INTERLEAVED}


def _layout(name: str, row: Mapping[str, Any]) -> Layout:
    about, names = _NAMES[name]
    left = iter(names)
    has = {
        "codes": True,
        "scales": True,
        "zeros": "zeros" in row,
        "global_scale": "has_global_scale" in row,
        "group_index": "has_group_index" in row,
    }
    return Layout(
        **{tensor: next(left) for tensor, there in has.items() if there},
        about=about,
        grid=_GRIDS.get(row.get("grid", "")),
        word=_WORDS.get(row["codes"]),
        packed_axis=row.get("packed_axis", 1),
        order=_PLACES.get(row.get("places", ""), LOW_FIRST),
        high_first=row.get("places") == "kHighFirst",
        by_input=row.get("by_input", False),
        offset=row.get("offset", 0),
        zeros_axis=row["zeros_axis"] if row.get("zeros") == "words" else None,
        zeros_less_one=row.get("zeros_less_one", False),
        exponents=row.get("exponents", False),
        flat=row.get("flat"),
        blocks=row.get("of_several_rows", False),
    )


ROWS = rows()
LAYOUTS = {name: _layout(name, row) for name, row in ROWS.items() if "block" not in row}
