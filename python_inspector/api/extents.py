"""Named extents of drawn operands: a name has one size in all draws of a call."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

Range = tuple[int, int]
"""The smallest and the largest size."""
BORDERS = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
"""Sizes around those of tiles: most kernels have a tail there, or none."""
PREFERRED = 0.8
"""How often a size is a border or an end of its range."""


def ranges_of(names: Iterable[str], given: Iterable[Mapping[str, Range]]) -> dict[str, Range]:
    """Of all names; ValueError where one has no range, or two."""
    ranges: dict[str, Range] = {}
    for own in given:
        for name, it in own.items():
            if ranges.setdefault(name, it) != it:
                raise ValueError(f"draw: {name} is {it} in one draw and {ranges[name]} in another")
    if missing := sorted(set(names) - ranges.keys()):
        raise ValueError(f"draw: extent {missing[0]} has no range; give one: {missing[0]}=(1, 200)")
    return ranges


def preferred(range_: Range) -> list[int]:
    low, high = range_
    return sorted({low, high, *(it for it in BORDERS if low <= it <= high)})


def sizes_of(ranges: Mapping[str, Range], seed: int, salt: int) -> dict[str, int]:
    """The size of each name: the same for the same seed and salt."""
    sizes = {}
    for name, it in ranges.items():
        dice = random.Random(f"{salt} {seed} {name}")
        border = dice.random() < PREFERRED
        sizes[name] = dice.choice(preferred(it)) if border else dice.randint(*it)
    return sizes


def words_of(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
