"""What kinds of aten operations the rounded model tells apart, and their operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

MOVES = {
    "clone", "_to_copy", "cat", "stack", "index", "_unsafe_index", "index_select", "gather",
    "embedding", "where", "masked_fill", "copy", "fill", "zero", "constant_pad_nd", "repeat",
    "index_put", "index_copy", "index_fill", "scatter", "masked_scatter", "masked_select", "tril",
    "triu", "flip", "roll", "select_scatter", "slice_scatter", "repeat_interleave", "take",
    "lift_fresh_copy",
}  # fmt: skip
"""Done in the stored dtype: nothing is computed; a cast rounds once, as in eager torch."""
MAKERS = {
    "zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty",
    "new_full", "new_empty_strided", "_unsafe_view", "_reshape_alias", "_local_scalar_dense",
    "lift_fresh", "_fused_sdp_choice",
}  # fmt: skip
"""Use a tensor's form alone, or make a view of it, or read m's value."""

IN_PLACE_VIEWS = {
    "squeeze", "unsqueeze", "transpose", "t", "swapaxes", "swapdims", "as_strided", "detach", "set",
}  # fmt: skip
"""With an underscore they change how a tensor views its storage, and nothing in it."""


def moves(func: OpOverload, name: str, args: Sequence[Any]) -> bool:
    """Whether nothing is computed: the gradient of what was read by index is put together by
    adding up."""
    adds = func is torch.ops.aten.index_put.default and len(args) > 3 and args[3]
    return name in MOVES and not adds


def is_inexact(t: torch.Tensor) -> bool:
    """Whether a tensor holds rounded numbers."""
    return t.is_floating_point() or t.is_complex()


def is_number(dtype: torch.dtype | None) -> bool:
    return dtype is not None and (dtype.is_floating_point or dtype.is_complex)


def draws(func: OpOverload) -> bool:
    """Whether the operation draws random numbers; of attention and recurrent layers, which may drop
    some of their own, that is not known."""
    return torch.Tag.nondeterministic_seeded in func.tags and not func._schema.name.startswith(
        "aten::_"
    )


def tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _collect((value,), found)
    return found


def _collect(values: Iterable[Any], found: list[torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            _collect(value, found)
        elif isinstance(value, dict):
            _collect(value.values(), found)


def leaves(value: Any) -> Iterator[Any]:
    """What an operation's arguments or results consist of; aten has lists and nothing else."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def operands_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """The leaves of all arguments; torch's tree_leaves takes a tenth of a recording for them."""
    return leaves((*args, *kwargs.values()))


def narrows(source: Any, result: torch.Tensor) -> bool:
    """Whether storing `source` as `result` rounds."""
    if not (isinstance(source, torch.Tensor) and source.is_floating_point()):
        return False
    other = source.itemsize == result.itemsize and source.dtype != result.dtype  # f16 to bf16
    return result.is_floating_point() and (source.itemsize > result.itemsize or other)
