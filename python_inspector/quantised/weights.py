"""Weights of codes, and the linear layer of them, for every format."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import UsageError
from . import bits
from .ggml import BLOCKS
from .layouts import LAYOUTS, Layout

FORMATS = (*LAYOUTS, *BLOCKS)
RECIPES = ("weight", "float32", "product", "zero")
"""Where a kernel rounds to the dtype of x before the output: the weight; nothing; the product of x
and codes, whose channels are scaled then; the weight, and scale times zero by itself (tinygemm)."""
Given = Mapping[str, Any]


def names_of(layout: str) -> list[str]:
    """The tensors of a format in the order of arguments, as files have them; g_idx is optional."""
    if layout not in FORMATS:
        raise UsageError(f"[quantised] layout is {layout!r}; known are {', '.join(FORMATS)}")
    return ["weight"] if layout in BLOCKS else LAYOUTS[layout].names


def dequantize(layout: str, *tensors: torch.Tensor | None) -> torch.Tensor:
    """The weight [out, in] in float32, (code - zero) * scale, of the tensors that `names_of` says.

    UsageError for a layout that is unknown, or tensors that do not fit it.
    """
    return _dequantized(layout, _signature(layout, "", tensors, {}))


def linear(layout: str, recipe: str = "weight") -> Callable[..., torch.Tensor]:
    """A function of x [..., in] and the tensors that `names_of` says: x times the weight,
    [..., out], in the dtype of x. It is the `like` of a kernel; RECIPES says where that rounds.

    UsageError for a layout or recipe that is unknown, or do not go together.
    """
    if recipe not in RECIPES:
        raise UsageError(f"[quantised] recipe is {recipe!r}; known are {', '.join(RECIPES)}")
    of_layout = LAYOUTS.get(layout)
    if recipe == "product" and (of_layout is None or of_layout.grid or of_layout.flat):
        raise UsageError(f"[quantised] recipe 'product' is for scales of channels, not of {layout}")
    if recipe == "zero" and (of_layout is None or of_layout.zeros is None):
        raise UsageError(f"[quantised] recipe 'zero' is for layouts with zeros; {layout} has none")

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        given = _signature(layout, "x", args, kwargs)
        return _RECIPES[recipe](given["x"], layout, given)

    call.__name__ = f"linear_{layout.replace('-', '_')}"
    call.__signature__ = _parameters(layout, "x")  # type: ignore[attr-defined]
    return call


def _parameters(layout: str, first: str) -> inspect.Signature:
    names = names_of(layout)
    optional = LAYOUTS[layout].group_index if layout in LAYOUTS else None
    kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(name, kind, default=None if name == optional else none)
            for name in ([first] if first else []) + names
        ]
    )


def _signature(layout: str, first: str, args: Any, kwargs: Any) -> Given:
    try:
        bound = _parameters(layout, first).bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(names_of(layout))
        raise UsageError(f"[quantised] {layout} has the tensors {names}: {error}") from None
    bound.apply_defaults()
    return bound.arguments


def _by_weight(x: torch.Tensor, layout: str, given: Given) -> torch.Tensor:
    return torch.nn.functional.linear(x, _dequantized(layout, given).to(x.dtype))


def _in_float32(x: torch.Tensor, layout: str, given: Given) -> torch.Tensor:
    return (x.float() @ _dequantized(layout, given).mT).to(x.dtype)


def _by_product(x: torch.Tensor, layout: str, given: Given) -> torch.Tensor:
    of = LAYOUTS[layout]
    codes, scales, zeros = _values(of, given)
    if scales.shape[1] != 1:
        text = f"{of.scales} has {scales.shape[1]} groups of columns"
        raise UsageError(f"[quantised] recipe 'product' is for scales of channels; {text}")
    codes = codes.float() if zeros is None else codes.float() - _spread(zeros, codes, of.zeros)
    return (x @ codes.to(x.dtype).mT) * scales.reshape(-1).to(x.dtype)


def _by_zero(x: torch.Tensor, layout: str, given: Given) -> torch.Tensor:
    of = LAYOUTS[layout]
    codes, scales, zeros = _values(of, given)
    assert zeros is not None
    scaled = _spread((scales.float() * zeros.float()).to(x.dtype), codes, of.zeros)
    weight = codes.float() * _spread(scales, codes, of.scales).float() - scaled.float()
    return torch.nn.functional.linear(x, weight.to(x.dtype))


_RECIPES = dict(zip(RECIPES, (_by_weight, _in_float32, _by_product, _by_zero), strict=True))


def _dequantized(layout: str, given: Given) -> torch.Tensor:
    if layout in BLOCKS:
        return _of_blocks(layout, given["weight"])
    return of_groups(LAYOUTS[layout], given)


def of_groups(of: Layout, given: Given) -> torch.Tensor:
    """The weight [out, in] of a layout, in float32."""
    codes, scales, zeros = _values(of, given)
    values = codes.float()
    if zeros is not None:
        values = values - _spread(zeros, codes, of.zeros)
    if of.flat is None:
        return values * _spread(scales.float(), codes, of.scales)
    if scales.numel() * of.flat != values.numel():
        raise UsageError(
            f"[quantised] {of.scales} has {scales.numel()} scales of {of.flat} codes, the weight "
            f"has {values.numel()} codes"
        )
    return values * scales.float().reshape(-1).repeat_interleave(of.flat).reshape(values.shape)


def _of_blocks(layout: str, stored: torch.Tensor) -> torch.Tensor:
    sizes, meaning = BLOCKS[layout]
    if stored.shape[-1] % sum(sizes):
        raise UsageError(
            f"[quantised] weight has {stored.shape[-1]} bytes a row; a block of {layout} has "
            f"{sum(sizes)}"
        )
    blocks = stored.reshape(-1, sum(sizes)).split(list(sizes), -1)
    weight: torch.Tensor = meaning(*blocks)
    return weight.reshape(*stored.shape[:-1], -1).float()


def _values(of: Layout, given: Given) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Values of codes [out, in]; scales and zeros [groups of rows, groups of columns]."""
    codes, scales = _unpacked(of, given[of.codes]), given[of.scales]
    zeros = None if of.zeros is None else given[of.zeros]
    if of.offset:
        codes = codes - of.offset
    if of.grid is not None:
        codes = torch.tensor(of.grid, device=codes.device)[codes.long()]
    if of.exponents:
        scales = bits.exponents(scales)
    if of.global_scale is not None:
        scales = scales.float() / given[of.global_scale].float()
    if zeros is not None and of.zeros_axis is not None:
        zeros = bits.of_words(zeros, of.zeros_axis, of.order)
    if zeros is not None and of.zeros_less_one:
        zeros = zeros + 1
    if of.by_input:
        codes, scales = codes.mT, scales.mT
        zeros = None if zeros is None else zeros.mT
    if of.group_index is not None and given[of.group_index] is not None:
        index = given[of.group_index].long()
        scales = scales[:, index]
        zeros = None if zeros is None else zeros[:, index]
    return codes, scales.reshape(1, 1) if scales.numel() == 1 else scales, zeros


def _unpacked(of: Layout, stored: torch.Tensor) -> torch.Tensor:
    if of.word == 32:
        return bits.of_words(stored, of.packed_axis, of.order)
    return bits.of_bytes(stored, of.high_first) if of.word == 8 else stored


def _spread(parts: torch.Tensor, codes: torch.Tensor, name: str | None) -> torch.Tensor:
    """Scales or zeros of groups, one for each code."""
    if parts.ndim == 1:
        parts = parts.unsqueeze(-1)
    for axis, of in enumerate(codes.shape):
        have = parts.shape[axis]
        if have == 0 or of % have:
            raise UsageError(
                f"[quantised] {name} has {have} groups along axis {axis} of a weight of {of}; "
                "groups are of one size"
            )
        parts = parts.repeat_interleave(of // have, axis) if have != of else parts
    return parts
