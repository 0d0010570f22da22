"""Transforms between an engine's tensors and the recorded ones: small, and composed by `then`.

Each takes a tensor (or an array: nothing here is torch's alone) and returns one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Transform = Callable[[Any], Any]


def identity(x: Any) -> Any:
    return x


def then(*steps: Transform) -> Transform:
    """One after the other, the first first."""

    def run(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    return run


def axes(theirs: str, ours: str) -> Transform:
    """Reorders axes by letter: axes("btnh", "bnth") exchanges tokens and heads.

    A letter that only `theirs` has must be of size 1, one that only `ours` has is added so.
    """
    if len(set(theirs)) != len(theirs) or len(set(ours)) != len(ours):
        raise ValueError(f"axes {theirs} -> {ours}: a letter appears twice")

    def run(x: Any) -> Any:
        if len(x.shape) != len(theirs):
            raise ValueError(f"a tensor of shape {tuple(x.shape)} has no axes {theirs}")
        dropped = [i for i, letter in enumerate(theirs) if letter not in ours]
        if any(x.shape[i] != 1 for i in dropped):
            raise ValueError(f"axes {theirs} -> {ours}: shape {tuple(x.shape)} loses elements")
        kept = [letter for letter in theirs if letter in ours]
        x = x.reshape([x.shape[i] for i in range(len(theirs)) if i not in dropped])
        x = _permuted(x, [kept.index(letter) for letter in ours if letter in kept])
        sizes = iter(x.shape)
        return x.reshape([next(sizes) if letter in kept else 1 for letter in ours])

    return run


def heads(count: int, axis: int = -1) -> Transform:
    """Cuts an axis into [count, what is left]: [b, t, n h] to [b, t, n, h]."""

    def run(x: Any) -> Any:
        at = axis % len(x.shape)
        if x.shape[at] % count:
            raise ValueError(f"axis {at} of {tuple(x.shape)} is no multiple of {count} heads")
        return x.reshape([*x.shape[:at], count, x.shape[at] // count, *x.shape[at + 1 :]])

    return run


def merged(axis: int = -2) -> Transform:
    """Puts an axis and the next into one: [b, t, n, h] to [b, t, n h]."""

    def run(x: Any) -> Any:
        at = axis % len(x.shape)
        return x.reshape([*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :]])

    return run


def part(sizes: Sequence[int], index: int, axis: int = 0) -> Transform:
    """One of the parts of a fused tensor: q, k or v of a projection of all three."""

    def run(x: Any) -> Any:
        at = axis % len(x.shape)
        if x.shape[at] != sum(sizes):
            raise ValueError(
                f"axis {at} of {tuple(x.shape)} is not the {sum(sizes)} of {list(sizes)}"
            )
        begin = sum(sizes[:index])
        return x[(slice(None),) * at + (slice(begin, begin + sizes[index]),)]

    return run


def grouped_part(query_heads: int, kv_heads: int, index: int, axis: int = 0) -> Transform:
    """q (0), k (1) or v (2) of a projection fused by groups: a group's queries, its k, its v."""
    group = query_heads // kv_heads

    def run(x: Any) -> Any:
        at = axis % len(x.shape)
        size = x.shape[at] // (query_heads + 2 * kv_heads)
        parts = x.reshape([*x.shape[:at], kv_heads, group + 2, size, *x.shape[at + 1 :]])
        chosen = slice(0, group) if index == 0 else slice(group + index - 1, group + index)
        taken = parts[(slice(None),) * (at + 1) + (chosen,)]
        return taken.reshape([*x.shape[:at], -1, *x.shape[at + 1 :]])

    return run


def half_from_interleaved(size: int, axis: int = -1) -> Transform:
    """Rotary pairs (0, 1), (2, 3), ... of every head to HuggingFace's halves (0, size / 2), ..."""
    return _pairs(size, axis, (size // 2, 2))


def interleaved_from_half(size: int, axis: int = -1) -> Transform:
    """The other way round."""
    return _pairs(size, axis, (2, size // 2))


def _pairs(size: int, axis: int, inner: tuple[int, int]) -> Transform:
    if size % 2:
        raise ValueError(f"a rotary head of {size} elements has no pairs")

    def run(x: Any) -> Any:
        at = axis % len(x.shape)
        if x.shape[at] % size:
            raise ValueError(f"axis {at} of {tuple(x.shape)} is no multiple of heads of {size}")
        shape = tuple(x.shape)
        x = x.reshape([*shape[:at], shape[at] // size, *inner, *shape[at + 1 :]])
        order = list(range(len(x.shape)))
        order[at + 1], order[at + 2] = order[at + 2], order[at + 1]
        return _permuted(x, order).reshape(shape)

    return run


def plus_one(x: Any) -> Any:
    """A norm's weight as it is multiplied with, of one that is stored without the 1."""
    return x + 1


def minus_one(x: Any) -> Any:
    return x - 1


def transposed(x: Any) -> Any:
    """[in, out] to [out, in]."""
    return _permuted(x, [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2])


def first_of(count: int, axis: int = -1) -> Transform:
    """The first elements of an axis: logits of a vocabulary that was padded."""

    def run(x: Any) -> Any:
        return x[(slice(None),) * (axis % len(x.shape)) + (slice(0, count),)]

    return run


def _permuted(x: Any, order: list[int]) -> Any:
    return x.permute(order) if hasattr(x, "permute") else x.transpose(order)
