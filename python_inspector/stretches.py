"""A contiguous part of a run: what one of several processes records."""

from __future__ import annotations

import re

Place = tuple[int, int]
"""A forward call, and where it is: the decoder layer, 0 also for what stands in front of the
layers, and their number for what stands behind them. Both count from 0."""
Stretch = tuple[Place, Place]
"""From a place up to another, which is no part of it."""


def text_of(stretch: Stretch) -> str:
    """As `inspector record --stretch` has it: `0.13:2.0`."""
    return ":".join(f"{call}.{layer}" for call, layer in stretch)


def stretch_of(text: str) -> Stretch:
    """ValueError where it is none."""
    match = re.fullmatch(r"(\d+)\.(\d+):(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a stretch like 0.13:2.0")
    begin_call, begin, end_call, end = map(int, match.groups())
    return (begin_call, begin), (end_call, end)
