"""Single torch operations as component blocks: data movement, arithmetic, masks, convolution.

Recorded only where `blocks` names their kinds, in whatever call is running: each is then
`<module path>:<kind>#<call>`. An operation that its block cannot express (a step in a slice, three
tensors joined, integers) is passed over.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..format.axes import Named, by_dimensions
from ..trace.replay import Rerun, Runner
from .calls import Block, Recorder, only_out

MOST_DIMENSIONS = 5
CHANNELS = ("batch", "channel", "token")
KERNEL = ("channel", "group", "state")


@dataclass
class Part:
    """One checkpoint of an operation: a block, its result and how to pick it from torch's."""

    block: Block
    result: torch.Tensor
    pick: Callable[[Any], Any]


class Component:
    """One torch call: what it was given, as it was before, and what it returned."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.function = function
        self.name: str = getattr(function, "__name__", "")
        self.args = (args[0].clone(), *args[1:]) if _writes_in_place(self.name) else args
        self.kwargs = kwargs

    def parts(self, result: Any) -> Iterator[Part]:
        """The checkpoints of this operation, none if it is no component."""
        describe = _DESCRIBE.get(self.name.removeprefix("__i").strip("_"))
        if describe is not None:
            yield from describe(self.args, self.kwargs, result)


def _writes_in_place(name: str) -> bool:
    """`x /= y` is __itruediv__ or div_, by how it is written and by torch's version."""
    if name.startswith("__"):
        return name.startswith("__i") and name != "__invert__"
    return name.endswith("_")


def is_component(function: Callable[..., Any]) -> bool:
    """Whether the torch function may be a component block."""
    name = getattr(function, "__name__", "")
    return name.removeprefix("__i").strip("_") in _DESCRIBE


def record_component(recorder: Recorder, path: str, operation: Component, result: Any) -> None:
    """The operation's checkpoints, those of the kinds that were asked for."""
    for part in operation.parts(result):

        def again(runner: Runner, pick: Callable[[Any], Any] = part.pick) -> Rerun:
            rerun = runner(operation.function, operation.args, operation.kwargs)
            rerun.result = pick(rerun.result)
            return rerun

        recorder.record(path, part.block.kind, part.block, part.result, again)


def _whole(result: Any) -> Any:
    return result


def _one(block: Block, result: torch.Tensor) -> Iterator[Part]:
    yield Part(block, result, _whole)


def _is_float(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and 0 < value.ndim <= MOST_DIMENSIONS
        and value.numel() > 0
    )


def _block(kind: str, x: torch.Tensor, result: torch.Tensor, **params: Any) -> Block:
    return Block(kind, {"x": by_dimensions(x)}, only_out(by_dimensions(result)[1]), params)


def _arithmetic(kind: str) -> Callable[..., Iterator[Part]]:
    """x op y: of two tensors, or of a tensor and a number."""

    def describe(args: Any, kwargs: Any, result: Any) -> Iterator[Part]:
        if len(args) != 2 or kwargs or not _is_float(result):
            return
        a, b = args if isinstance(args[0], torch.Tensor) else args[::-1]
        if isinstance(b, (int, float)):
            if kind == "add" and a.dtype == result.dtype:
                yield from _one(_block("add_scalar", a, result, value=float(b)), result)
        elif all(_is_float(t) and t.dtype == result.dtype for t in (a, b)) and kind != "add":
            if kind == "mul" and a.shape != result.shape:
                a, b = b, a
            if a.shape == result.shape:
                axes = by_dimensions(result)[1]
                pair: dict[str, Named] = {"a": (a, axes), "b": (_rows(b, result), axes)}
                yield from _one(Block(kind, pair, only_out(axes)), result)

    return describe


def _rows(b: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The second operand with all dimensions and whole rows; its outer ones may broadcast."""
    b = b.reshape((1,) * (like.ndim - b.ndim) + tuple(b.shape))
    return b.expand(*b.shape[:-1], like.shape[-1])


def _concat(args: Any, kwargs: Any, result: Any) -> Iterator[Part]:
    tensors, dim = args[0], (*args[1:], *kwargs.values(), 0)[0]
    if len(tensors) != 2 or not all(map(_is_float, tensors)):
        return
    axes = by_dimensions(result)[1]
    inputs: dict[str, Named] = {"a": (tensors[0], axes), "b": (tensors[1], axes)}
    params = {"axis": int(dim) % result.ndim}
    yield from _one(Block("concat", inputs, only_out(axes), params), result)


def _getitem(args: Any, kwargs: Any, result: Any) -> Iterator[Part]:
    """x[..., begin:end]: one axis cut, the others whole."""
    x, index = args
    if not _is_float(x) or not isinstance(result, torch.Tensor) or result.ndim != x.ndim:
        return
    index = index if isinstance(index, tuple) else (index,)
    if any(not isinstance(i, slice) and i is not Ellipsis for i in index) or result.numel() == 0:
        return
    at = index.index(Ellipsis) if Ellipsis in index else len(index)
    spread = [slice(None)] * (x.ndim - len(index) + (Ellipsis in index))
    ranges = [
        part.indices(extent)
        for part, extent in zip((*index[:at], *spread, *index[at + 1 :]), x.shape, strict=True)
    ]
    cut = [i for i, (n, m) in enumerate(zip(x.shape, result.shape, strict=True)) if n != m]
    if len(cut) == 1 and ranges[cut[0]][2] == 1:
        begin, end, _ = ranges[cut[0]]
        yield from _one(_block("slice", x, result, axis=cut[0], begin=begin, end=end), result)


def _pieces(args: Any, kwargs: Any, result: Any) -> Iterator[Part]:
    """chunk and split: each piece is a slice."""
    x, dim = args[0], kwargs.get("dim", args[2] if len(args) > 2 else 0)
    if not _is_float(x) or len(result) < 2:
        return
    axis, begin = int(dim) % x.ndim, 0
    for i, piece in enumerate(result):
        end = begin + piece.shape[axis]
        block = _block("slice", x, piece, axis=axis, begin=begin, end=end)
        yield Part(block, piece, operator.itemgetter(i))
        begin = end


def _permutation(args: Any, kwargs: Any, result: Any) -> Iterator[Part]:
    """transpose(a, b) and permute(*axes): axis i of the result is axis `axes[i]` of x."""
    x, given = args[0], [*args[1:], *kwargs.values()]
    if not _is_float(x) or x.ndim < 2:
        return
    given = list(given[0]) if len(given) == 1 and not isinstance(given[0], int) else given
    axes = [int(axis) % x.ndim for axis in given]
    if len(axes) == 2 and x.ndim > 2:
        first, second = axes
        axes = list(range(x.ndim))
        axes[first], axes[second] = second, first
    elif len(axes) == 2:
        axes = [1, 0]
    numbers = [float(axis) for axis in axes]
    yield from _one(_block("permute", x, result, axes=numbers), result)


def _cast(args: Any, kwargs: Any, result: Any) -> Iterator[Part]:
    """to(dtype), float(): from one float format to another."""
    x = args[0]
    if _is_float(x) and _is_float(result) and x.dtype != result.dtype:
        yield from _one(_block("cast", x, result), result)


def _mask_fill(args: Any, kwargs: Any, result: Any) -> Iterator[Part]:
    x, mask, value = args
    if not _is_float(x) or not isinstance(value, (int, float)):
        return
    mask = mask.reshape((1,) * (x.ndim - mask.ndim) + tuple(mask.shape))
    if mask.shape[-1] != x.shape[-1]:
        return
    axes = by_dimensions(x)[1]
    inputs: dict[str, Named] = {"x": (x, axes), "mask": (mask, axes)}
    params = {"value": float(value)}
    yield from _one(Block("mask_fill", inputs, only_out(axes), params), result)


def _conv1d(args: Any, kwargs: Any, result: Any) -> Iterator[Part]:
    """torch.nn.functional.conv1d with a kernel per channel, stride and dilation 1."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if x.ndim != 3 or weight.shape[1] != 1 or given.get("groups") != x.shape[1]:
        return
    padding = given.get("padding", 0)
    if isinstance(padding, str) or not given.keys() <= set(names) - {"stride", "dilation"}:
        return
    inputs: dict[str, Named] = {"x": (x, CHANNELS), "weight": (weight, KERNEL)}
    if bias is not None:
        inputs["bias"] = (bias, ("channel",))
    (padding,) = padding if isinstance(padding, tuple) else (padding,)
    yield from _one(Block("conv1d", inputs, only_out(CHANNELS), {"padding": padding}), result)


def position_ids(offset: int, valid: torch.Tensor | None) -> Block:
    """Positions of tokens: offset, offset + 1, ... or, with padding, counts of real tokens."""
    axes = ("batch", "token")
    inputs: dict[str, Named] = {} if valid is None else {"token_valid": (valid.bool(), axes)}
    return Block("position_ids", inputs, only_out(axes), {"offset": offset})


_DESCRIBE: dict[str, Callable[..., Iterator[Part]]] = {
    "add": _arithmetic("add"),
    "radd": _arithmetic("add"),
    "mul": _arithmetic("mul"),
    "rmul": _arithmetic("mul"),
    "multiply": _arithmetic("mul"),
    "div": _arithmetic("div"),
    "truediv": _arithmetic("div"),
    "true_divide": _arithmetic("div"),
    "cat": _concat,
    "concat": _concat,
    "concatenate": _concat,
    "getitem": _getitem,
    "chunk": _pieces,
    "split": _pieces,
    "transpose": _permutation,
    "permute": _permutation,
    "to": _cast,
    "float": _cast,
    "type_as": _cast,
    "masked_fill": _mask_fill,
    "conv1d": _conv1d,
}
