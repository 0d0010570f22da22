"""Sequences of several lengths that operands hold one after the other: offsets among the operands
(cu_seqlens) say where each begins, and where the last one ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

from ..errors import UsageError
from .relations import Variation

Offsets = tuple[int, ...]


@dataclass(frozen=True)
class Sequences:
    """By name the operands that are offsets, and those of tensors of so many tokens."""

    given: Mapping[str, Offsets]
    of: Mapping[int, Offsets]

    @property
    def count(self) -> int:
        return len(next(iter(self.of.values()))) - 1

    def tensor_after(self, t: torch.Tensor, variation: Variation) -> torch.Tensor | None:
        """Offsets or lengths as they are in a varied call; None where it is neither."""
        if t.ndim != 1 or t.is_floating_point() or len(t) - self.count not in (0, 1):
            return None
        values = tuple(t.tolist())
        for offsets in self.of.values():
            lengths = resized(variation, offsets)
            if values == offsets:
                return torch.tensor([0, *accumulate(lengths)], dtype=t.dtype, device=t.device)
            if values == _lengths(offsets):
                return torch.tensor(lengths, dtype=t.dtype, device=t.device)
        return None

    def number_after(self, number: int, variation: Variation) -> int:
        """What is the length of the longest sequence stays that."""
        for offsets in self.of.values():
            if number == max(_lengths(offsets)):
                return max(resized(variation, offsets), default=0)
        return number


def sequences_of(tensors: Mapping[str, torch.Tensor], extents: set[int]) -> Sequences | None:
    """None where no operand has offsets: whole numbers from 0 up to one of the extents. UsageError
    where they say two things."""
    given = {name: made for name, t in tensors.items() if (made := _offsets(t, extents))}
    of: dict[int, Offsets] = {}
    for name, offsets in given.items():
        known = of.setdefault(offsets[-1], offsets)
        if known != offsets or len(offsets) != len(next(iter(given.values()))):
            raise UsageError(
                f"[batch] {', '.join(given)} are offsets of sequences; {name} has others than the "
                "first, and sizes do not show which tensors they are of: give so many sequences, "
                "and other numbers of tokens"
            )
    return Sequences(given, of) if given else None


def _offsets(t: torch.Tensor, extents: set[int]) -> Offsets:
    if t.ndim != 1 or len(t) < 2 or t.is_floating_point() or t.dtype == torch.bool:
        return ()
    if t.is_complex() or int(t[0]) != 0 or int(t[-1]) not in extents or int(t[-1]) == 0:
        return ()
    return tuple(t.tolist()) if bool((t.diff() >= 0).all()) else ()


def in_tokens(variation: Variation, offsets: Offsets) -> Variation:
    """Of sequences, as one of the tokens of a tensor that has them."""
    source: list[int] = []
    judged: list[int] = []
    lengths = resized(variation, offsets)
    own = set(variation.judged)
    for place, (row, length) in enumerate(zip(variation.source, lengths, strict=True)):
        if place in own:
            judged += range(len(source), len(source) + length)
        first, end = offsets[row], offsets[row + 1]
        source += (first + i % (end - first) for i in range(length))
    return replace(variation, source=tuple(source), judged=tuple(judged))


def resized(variation: Variation, offsets: Offsets) -> list[int]:
    """The lengths of the sequences; those that are not judged may have others than they had."""
    own, lengths = set(variation.judged), _lengths(offsets)
    return [
        lengths[row] if place in own else SIZES[variation.size](lengths[row])
        for place, row in enumerate(variation.source)
    ]


def _lengths(offsets: Offsets) -> tuple[int, ...]:
    return tuple(end - first for first, end in pairwise(offsets))


SIZES = {
    "": lambda length: length,
    "one token": lambda length: min(length, 1),
    "half their length": lambda length: (length + 1) // 2,
    "twice their length": lambda length: 2 * length,
}
