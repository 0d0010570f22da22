"""Calls of which only some tokens are recorded.

A block that computes each token by itself gives the chosen tokens the same from them alone. So its
call is recorded as if it had been made with those: inputs, oracle and simulated kernels of them,
and of what the run gave the same rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..errors import RecordError
from ..format.axes import Named, by_dimensions
from ..format.generator import splitmix64
from ..format.sampled import TILE
from ..taps.calls import Block
from ..trace.replay import Again, Rerun, Runner, Twin

ROW_WISE = {
    "linear", "rms_norm", "layer_norm", "gated_rms_norm", "embedding", "activation", "softcap",
    "glu_activation", "glu_mlp", "add", "scale", "lm_head", "rotary", "low_rank_adapter",
}  # fmt: skip
"""Kinds whose every token is computed by itself."""
_SEED = 1


@functools.lru_cache
def chosen_tokens(tokens: int, count: int) -> list[int]:
    """`count` of a call's tokens, ascending: the first and the last, both sides of tile borders
    (the first ones and the last one), the rest by hash; all of them where there are no more."""
    if tokens <= count:
        return list(range(tokens))
    borders = [TILE, 2 * TILE, (tokens - 1) // TILE * TILE, 4 * TILE]
    named = [0, tokens - 1, *(row for border in borders for row in (border - 1, border))]
    hashed = (int(value) % tokens for value in splitmix64(_SEED, 0, 64 * count))
    chosen: dict[int, None] = {}
    for row in [*named, *hashed, *range(tokens)]:
        if 0 <= row < tokens and len(chosen) < count:
            chosen[row] = None
    return sorted(chosen)


def of_rows(block: Block, again: Again | None, count: int) -> tuple[Block, Again | None] | None:
    """The block and its rerun with `count` chosen tokens; None for one that mixes tokens."""
    mixed = any("kv_token" in axes for _, axes in block.inputs.values())
    if block.kind not in ROW_WISE or mixed:
        return None
    if block.params.get("logits_to_keep"):
        return block, again
    extents = {_extent(named) for named in block.inputs.values()} - {None, 1}
    if len(extents) != 1:
        return (block, again) if not extents else None
    (tokens,) = extents
    assert tokens is not None
    if tokens <= count:
        return block, again
    rows = chosen_tokens(tokens, count)
    axes_of = {id(tensor): axes for tensor, axes in block.inputs.values()}

    def cut(value: Any) -> Any:
        """A tensor of the call, of the chosen tokens; anything else as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        axes = axes_of.get(id(value)) or by_dimensions(value)[1]
        return _take(value, axes, tokens, rows)

    def again_of_rows(runner: Runner) -> Rerun:
        def run(function: Callable[..., Any], args: Any, kwargs: Any, modules: Any = ()) -> Rerun:
            args, kwargs = tree_map(cut, (tuple(args), dict(kwargs)))
            return runner(function, args, kwargs, modules)

        assert again is not None
        return again(run)

    whole = block.outputs

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        named = whole(result, twin)
        taken = {n: (_take(t, axes, tokens, rows), axes) for n, (t, axes) in named.items()}
        for name, (t, axes) in taken.items():
            if _extent((t, axes)) != len(rows):
                raise RecordError(
                    f"[rows] {block.kind} was given {len(rows)} of {tokens} tokens and its {name} "
                    f"is {tuple(t.shape)}: it is no function of single tokens; record the layer "
                    "whole (whole_layers)"
                )
        return taken

    block.inputs = {
        name: (_take(tensor, axes, tokens, rows), axes)
        for name, (tensor, axes) in block.inputs.items()
    }
    block.outputs = outputs
    block.of_rows = True
    return block, None if again is None else again_of_rows


def _extent(named: Named) -> int | None:
    tensor, axes = named
    return tensor.shape[axes.index("token")] if "token" in axes else None


def _take(
    tensor: torch.Tensor, axes: Sequence[str], tokens: int, rows: Sequence[int]
) -> torch.Tensor:
    """The chosen rows of a tensor that has all of them."""
    if "token" not in axes or tensor.shape[axes.index("token")] != tokens:
        return tensor
    index = torch.tensor(list(rows), device=tensor.device)
    return tensor.index_select(axes.index("token"), index)
