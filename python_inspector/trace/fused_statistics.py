"""The statistics of gate_statistics.py in fewer passes over memory, and in float32.

The samples' statistics take as long as the samples: memory is all that counts. What a recording
keeps of them has three digits.
"""

from __future__ import annotations

import torch

from ..format.host_copy import is_host
from .gate_statistics import Figures, Layout, Scales
from .simulation import LONG, NARROW


def statistics(scales: Scales, y: torch.Tensor) -> Figures:
    """As Scales.statistics(), of samples [..., k, *shape]; by that where they are small and on a
    host, or something is out of the ordinary."""
    is_small = is_host(y.device) and scales.o.numel() < LONG
    if is_small or not scales.fit_float32:
        return scales.statistics(y)
    layout = scales.layout
    off = _off(scales, y)
    tiles = _tile_squares(off, layout)
    tokens = tiles.sum(-1)
    sums = {
        "token": lambda: tokens,
        "token x head": lambda: _head_squares(off, tiles, layout),
        "channel": lambda: torch.linalg.vector_norm(off, dim=-2).double().square_(),
        "tile": lambda: layout.tile_sums(tiles),
    }
    whole = scales.whole[..., None]
    figures = {"tensor": (tokens.sum(-1) / whole).sqrt()}
    figures |= {name: scales.largest_error(sums[name](), name) for name in scales.families()}
    products = torch.matmul(  # of each row on its own: float32 has room for one
        off.transpose(-3, -2), scales.known.float()[..., None]
    )
    gain = products.double().sum((-3, -1)) / whole
    off /= scales.element.float()[..., None, :, :]
    figures["element"] = torch.linalg.vector_norm(off, torch.inf, dim=(-2, -1)).double()
    figures["gain"] = gain
    return figures


def _off(scales: Scales, y: torch.Tensor) -> torch.Tensor:
    """[..., k, rows, columns]: how far outputs are from the oracle."""
    arranged = scales.layout.arranged(y)
    if y.dtype in NARROW:  # which is off by more than float32 rounds the oracle
        return arranged - scales.o.float()[..., None, :, :]
    return (arranged - scales.o[..., None, :, :]).float()


def _tile_squares(off: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Sums of squares of each row's tiles: [..., k, rows, tiles]."""
    across = -(-layout.columns // layout.tile_width)
    if missing := across * layout.tile_width - layout.columns:
        off = torch.nn.functional.pad(off, (0, missing))
    parts = off.unflatten(-1, (across, layout.tile_width))
    return torch.linalg.vector_norm(parts, dim=-1).double().square_()


def _head_squares(off: torch.Tensor, tiles: torch.Tensor, layout: Layout) -> torch.Tensor:
    assert layout.head is not None
    before, heads, behind = layout.head
    if before == 1 and behind % layout.tile_width == 0:
        return tiles.unflatten(-1, (heads, -1)).sum(-1).flatten(-2)
    split = off.unflatten(-1, layout.head)
    return torch.linalg.vector_norm(split, dim=(-3, -1)).double().square_().flatten(-2)
