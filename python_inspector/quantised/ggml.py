"""Blocks of ggml: a row of a weight is so many blocks of bytes, each with its codes and scales, at
the places that kernels/ops/layout_list.h has of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from .bits import fields
from .layouts import ROWS


@dataclass(frozen=True)
class Plane:
    """Bits of all codes: the lowest of each of `run` bytes, then the next ones of these."""

    at: int
    bits: int
    run: int
    place: int = 0
    """In the code."""


@dataclass(frozen=True)
class Blocks:
    """Where the parts of a block are: the first byte of each."""

    bytes: int
    codes: int
    group: int
    """Codes that share a scale of `parts`."""
    low: Plane
    high: Plane | None
    scale: int
    """Of the f16 that multiplies all."""
    least: int | None
    """Of the f16 that is added or, times the group's, taken off."""
    parts: str
    """How the groups' scales are packed, `parts_at`."""
    parts_at: int
    offset: int
    """Is taken off each code."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of the parts, one behind the other."""
        planes = [self.low.at] if self.high is None else [self.low.at, self.high.at]
        halves = [self.scale] if self.least is None else [self.scale, self.least]
        groups = [] if self.parts == "none" else [self.parts_at]
        places = [*sorted([*planes, *halves, *groups]), self.bytes]
        return [end - at for at, end in pairwise(places)]


def _blocks(row: Any) -> Blocks:
    block = row["block"]
    return Blocks(
        bytes=block["bytes"],
        codes=block["codes"],
        group=block["group"],
        low=Plane(*block["low"]),
        high=Plane(*block["high"]) if "high" in block else None,
        scale=block.get("scale", 0),
        least=block.get("least"),
        parts=block.get("parts", "none"),
        parts_at=block.get("parts_at", 0),
        offset=row.get("offset", 0),
    )


BLOCKS = {name: _blocks(row) for name, row in ROWS.items() if "block" in row}


def weights_of(of: Blocks, blocks: torch.Tensor) -> torch.Tensor:
    """[blocks, codes] in float32, of [blocks, bytes]."""
    codes = _codes(of, of.low, blocks)
    if of.high is not None:
        codes = codes | _codes(of, of.high, blocks)
    scales, mins = _PARTS[of.parts](blocks[:, of.parts_at :])
    values = (codes - of.offset).reshape(len(blocks), -1, of.group)
    weights = _half(blocks, of.scale) * scales * values
    if of.least is not None:
        least = _half(blocks, of.least) * mins
        weights = weights + least if of.parts == "none" else weights - least
    return weights.reshape(len(blocks), of.codes)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The f16 there, as [blocks, 1, 1] in float32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float().unsqueeze(-1)


def _codes(of: Blocks, plane: Plane, blocks: torch.Tensor) -> torch.Tensor:
    stored = blocks[:, plane.at : plane.at + of.codes * plane.bits // 8]
    if plane.bits == 8:
        return stored.contiguous().view(torch.int8)
    return fields(stored, plane.bits, plane.run) << plane.place


def _none(packed: torch.Tensor) -> tuple[Any, Any]:
    return 1, 1


def _nibbles(packed: torch.Tensor) -> tuple[Any, Any]:
    both = packed[:, :16].unsqueeze(-1)
    return both & 15, both >> 4


def _six_bits(packed: torch.Tensor) -> tuple[Any, Any]:
    """Of sixteen groups, less 32: the upper two bits of four are in a byte."""
    scales = fields(packed[:, :8], 4, 8) | (fields(packed[:, 8:12], 2, 4) << 4)
    return (scales - 32).unsqueeze(-1), 0


def _six_bits_and_least(packed: torch.Tensor) -> tuple[Any, Any]:
    """6 bits each of eight groups: the upper two of the last four are with the first four."""
    first, second, both = packed[:, :12].int().unflatten(-1, (3, 4)).unbind(1)
    scales = torch.cat([first & 63, (both & 15) | ((first >> 6) << 4)], -1)
    mins = torch.cat([second & 63, (both >> 4) | ((second >> 6) << 4)], -1)
    return scales.unsqueeze(-1), mins.unsqueeze(-1)


def _bytes(packed: torch.Tensor) -> tuple[Any, Any]:
    return packed[:, :16].contiguous().view(torch.int8).unsqueeze(-1), 0


_PARTS = {
    "none": _none,
    "nibbles": _nibbles,
    "six_bits": _six_bits,
    "six_bits_and_least": _six_bits_and_least,
    "bytes": _bytes,
}
"""Scales of groups, and what is taken off with them: [blocks, groups, 1]."""
