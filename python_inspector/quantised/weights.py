"""Weights of codes, and the linear layer of them, for every format."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import UsageError
from . import bits
from .ggml import BLOCKS, weights_of
from .layouts import LAYOUTS, ROWS, Layout

FORMATS = tuple(ROWS)
RECIPES = ("weight", "float32", "product", "zero", "factored")
"""Where a kernel rounds to the dtype of x before the output: the weight; nothing; the product of x
and codes, whose channels are scaled then; the weight, and scale times zero by itself (tinygemm).
The last rounds nothing either, but takes the product of zeros off that of codes at the end, where
they cancel."""
Given = Mapping[str, Any]


def names_of(layout: str) -> list[str]:
    """The tensors of a format in the order of arguments, as files have them; g_idx is optional."""
    if layout not in FORMATS:
        raise UsageError(f"[quantised] layout is {layout!r}; known are {', '.join(FORMATS)}")
    return ["weight"] if layout in BLOCKS else LAYOUTS[layout].names


def dequantize(
    layout: str, *tensors: torch.Tensor | None, group: tuple[int, int] | None = None
) -> torch.Tensor:
    """The weight [out, in] in float32, (code - zero) * scale, of the tensors that `names_of` says.
    `group` is how many rows and columns share a scale, where the last ones have less; else the
    shape of the scales says it.

    UsageError for a layout that is unknown, or tensors that do not fit it.
    """
    return _dequantized(layout, _bound(layout, "", tensors, {}), group)


def linear(
    layout: str, recipe: str = "weight", group: tuple[int, int] | None = None
) -> Callable[..., torch.Tensor]:
    """A function of x [..., in] and the tensors that `names_of` says: x times the weight,
    [..., out], in the dtype of x. It is the `like` of a kernel; RECIPES says where that rounds,
    `group` is as in dequantize().

    UsageError for a layout or recipe that is unknown, or do not go together; from the function for
    tensors that do not fit.
    """
    if recipe not in RECIPES:
        raise UsageError(f"[quantised] recipe is {recipe!r}; known are {', '.join(RECIPES)}")
    of_layout = LAYOUTS.get(layout)
    if recipe == "product" and (of_layout is None or of_layout.grid or of_layout.flat):
        raise UsageError(f"[quantised] recipe 'product' is for scales of channels, not of {layout}")
    if recipe in ("zero", "factored") and (of_layout is None or of_layout.zeros is None):
        text = f"recipe {recipe!r} is for layouts with zeros; {layout} has none"
        raise UsageError(f"[quantised] {text}")

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        given = _bound(layout, "x", args, kwargs)
        x = given["x"]
        if not x.is_floating_point():
            raise UsageError(f"[quantised] x is {x.dtype}, it is of floats")
        return _RECIPES[recipe](x, layout, given, group)

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


def _bound(layout: str, first: str, args: Any, kwargs: Any) -> Given:
    try:
        bound = _parameters(layout, first).bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(names_of(layout))
        raise UsageError(f"[quantised] {layout} has the tensors {names}: {error}") from None
    bound.apply_defaults()
    return bound.arguments


Group = tuple[int, int] | None


def _by_weight(x: torch.Tensor, layout: str, given: Given, group: Group) -> torch.Tensor:
    return torch.nn.functional.linear(x, _dequantized(layout, given, group).to(x.dtype))


def _in_float32(x: torch.Tensor, layout: str, given: Given, group: Group) -> torch.Tensor:
    return (x.float() @ _dequantized(layout, given, group).mT).to(x.dtype)


def _by_product(x: torch.Tensor, layout: str, given: Given, group: Group) -> torch.Tensor:
    of = LAYOUTS[layout]
    codes, scales, zeros = _values(of, given)
    if scales.shape[1] != 1:
        text = f"{of.scales} has {scales.shape[1]} groups of columns"
        raise UsageError(f"[quantised] recipe 'product' is for scales of channels; {text}")
    values = codes.float()
    if zeros is not None:
        values = values - _spread(of, of.zeros, zeros, codes.shape, group)
    scales = _spread(of, of.scales, scales, (len(codes), 1), group)
    return (x @ values.to(x.dtype).mT) * scales.reshape(-1).to(x.dtype)


def _by_zero(x: torch.Tensor, layout: str, given: Given, group: Group) -> torch.Tensor:
    of = LAYOUTS[layout]
    codes, scales, zeros = _values(of, given)
    assert zeros is not None
    rounded = (scales.float() * zeros.float()).to(x.dtype)
    scaled = _spread(of, of.zeros, rounded, codes.shape, group)
    scales = _spread(of, of.scales, scales, codes.shape, group)
    weight = codes.float() * scales.float() - scaled.float()
    return torch.nn.functional.linear(x, weight.to(x.dtype))


def _by_factors(x: torch.Tensor, layout: str, given: Given, group: Group) -> torch.Tensor:
    of = LAYOUTS[layout]
    codes, scales, zeros = _values(of, given)
    assert zeros is not None
    scales = _spread(of, of.scales, scales.float(), codes.shape, group)
    zeros = _spread(of, of.zeros, zeros, codes.shape, group)
    x = x.float()
    return (x @ (codes * scales).mT - x @ (zeros * scales).mT).to(given["x"].dtype)


_RECIPES = {
    "weight": _by_weight,
    "float32": _in_float32,
    "product": _by_product,
    "zero": _by_zero,
    "factored": _by_factors,
}


def _dequantized(layout: str, given: Given, group: Group = None) -> torch.Tensor:
    if layout in BLOCKS:
        weight = _of_blocks(layout, given["weight"])
    else:
        weight = of_groups(LAYOUTS[layout], given, group)
    if "x" in given and weight.shape[-1] != given["x"].shape[-1]:
        raise UsageError(
            f"[quantised] x has {given['x'].shape[-1]} columns, the weight of {layout} has "
            f"{weight.shape[-1]}"
        )
    return weight


def of_groups(of: Layout, given: Given, group: Group = None) -> torch.Tensor:
    """The weight [out, in] of a layout, in float32."""
    codes, scales, zeros = _values(of, given)
    values = codes.float()
    if zeros is not None:
        values = values - _spread(of, of.zeros, zeros, codes.shape, group)
    if of.flat is None:
        return values * _spread(of, of.scales, scales.float(), codes.shape, group)
    count = values.numel()
    if scales.numel() != -(-count // of.flat):
        raise UsageError(
            f"[quantised] {of.scales} has {scales.numel()} scales of {of.flat} codes, the weight "
            f"has {count} codes"
        )
    each = scales.float().reshape(-1).repeat_interleave(of.flat)[:count]
    return values * each.reshape(values.shape)


def _of_blocks(layout: str, stored: torch.Tensor) -> torch.Tensor:
    of = BLOCKS[layout]
    if stored.dtype != torch.uint8 or stored.ndim != 2:
        raise UsageError(
            f"[quantised] weight is {stored.dtype} {tuple(stored.shape)}; blocks of {layout} are "
            "torch.uint8 [out, bytes of a row]"
        )
    if stored.shape[-1] % of.bytes:
        raise UsageError(
            f"[quantised] weight has {stored.shape[-1]} bytes a row; a block of {layout} has "
            f"{of.bytes}"
        )
    return weights_of(of, stored.reshape(-1, of.bytes)).reshape(len(stored), -1).float()


def _values(of: Layout, given: Given) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Values of codes [out, in]; scales and zeros [groups of rows, groups of columns]."""
    codes, scales = _unpacked(of, of.codes, given[of.codes]), given[of.scales]
    zeros = None if of.zeros is None else given[of.zeros]
    if of.offset:
        codes = codes - of.offset
    if of.grid is not None:
        codes = torch.tensor(of.grid, device=codes.device)[codes.long()]
    if of.exponents:
        scales = bits.exponents(scales)
    if of.global_scale is not None:
        scales = scales.float() / _single(of.global_scale, given[of.global_scale]).float()
    if zeros is not None and of.zeros_axis is not None:
        zeros = _words(of, str(of.zeros), zeros, of.zeros_axis)
    if zeros is not None and of.zeros_less_one:
        zeros = zeros + 1
    if of.by_input:
        codes, scales = codes.mT, scales.mT
        zeros = None if zeros is None else zeros.mT
    if scales.numel() == 1:
        scales = scales.reshape(1, 1)
    codes = _without_padding(of, codes, scales, given.get("x"))
    if zeros is not None:
        zeros = zeros[: scales.shape[0], : scales.shape[-1]] if zeros.ndim == 2 else zeros
    index = None if of.group_index is None else given[of.group_index]
    if index is not None and index.numel():
        if index.numel() != codes.shape[1]:
            raise UsageError(
                f"[quantised] {of.group_index} has {index.numel()} entries, the weight has "
                f"{codes.shape[1]} columns"
            )
        scales = scales[:, index.long()]
        zeros = None if zeros is None else zeros[:, index.long()]
    return codes, scales, zeros


def _without_padding(
    of: Layout, codes: torch.Tensor, scales: torch.Tensor, x: torch.Tensor | None
) -> torch.Tensor:
    """Words are filled up where no eight codes are left; a flat weight has the columns of x."""
    if x is not None and of.flat is not None and codes.numel() % x.shape[-1] == 0:
        return codes.reshape(-1, x.shape[-1])
    if x is not None and of.word == 32 and 0 < codes.shape[1] - x.shape[-1] < 8:
        codes = codes[:, : x.shape[-1]]
    if of.by_input and of.word == 32 and 0 < len(codes) - len(scales) < 8:
        codes = codes[: len(scales)]
    return codes


def _single(name: str, t: torch.Tensor) -> torch.Tensor:
    if t.numel() != 1:
        raise UsageError(f"[quantised] {name} has {t.numel()} elements, it is one number")
    return t.reshape(())


def _unpacked(of: Layout, name: str, stored: torch.Tensor) -> torch.Tensor:
    if of.word == 32:
        return _words(of, name, stored, of.packed_axis)
    if of.word is None:
        return stored
    if stored.dtype != torch.uint8:
        raise UsageError(f"[quantised] {name} is {stored.dtype}; two codes are in a torch.uint8")
    flat = of.flat is not None and stored.shape[-1] == 1  # as bitsandbytes has it
    return bits.of_bytes(stored.reshape(-1) if flat else stored, of.high_first)


def _words(of: Layout, name: str, stored: torch.Tensor, axis: int) -> torch.Tensor:
    if stored.dtype != torch.int32:
        raise UsageError(f"[quantised] {name} is {stored.dtype}; eight codes are in a torch.int32")
    return bits.of_words(stored, axis, of.order)


def _spread(
    of: Layout, name: str | None, parts: torch.Tensor, shape: tuple[int, ...], group: Group
) -> torch.Tensor:
    """Scales or zeros of groups, one for each code."""
    if parts.ndim == 1:
        parts = parts.unsqueeze(-1)
    for axis, (have, length) in enumerate(zip(parts.shape, shape, strict=True)):
        if have == length:
            continue
        size = length if have == 1 else 0 if group is None else group[axis]
        if not size and have and length % have == 0 and not _odd(length // have):
            size = length // have
        if not size or have != -(-length // size) or (axis == 0 and have > 1 and not of.blocks):
            raise UsageError(
                f"[quantised] {name} has {have} groups along axis {axis} of a weight of {length}: "
                + ("they are of one row each" if axis == 0 and not of.blocks else _ADVICE)
            )
        parts = parts.repeat_interleave(size, axis).narrow(axis, 0, length)
    return parts


_ADVICE = "say how many rows and columns share a scale, group=(rows, columns)"


def _odd(size: int) -> bool:
    """Whether no format has groups of this size: those that scales do not fill are shorter."""
    return size & (size - 1) != 0
