"""Codes of a few bits, out of the words that they are packed in."""

from __future__ import annotations

from collections.abc import Sequence

import torch

LOW_FIRST = tuple(range(8))


def of_words(words: torch.Tensor, axis: int, order: Sequence[int] = LOW_FIRST) -> torch.Tensor:
    """Eight codes of 4 bits of each 32-bit word, along an axis, which becomes eight times as long.
    Code i is at the place order.index(i), the lowest bits first."""
    places = torch.tensor([order.index(i) for i in range(8)], device=words.device)
    shifts = (4 * places).view([1] * words.ndim + [8])
    codes = (words.movedim(axis, -1).unsqueeze(-1) >> shifts) & 15
    return codes.flatten(-2).movedim(-1, axis)


def of_bytes(packed: torch.Tensor, high_first: bool = False) -> torch.Tensor:
    """Two codes of each byte, along the last axis."""
    halves = [packed & 15, packed >> 4]
    return torch.stack(halves[::-1] if high_first else halves, -1).flatten(-2)


def fields(packed: torch.Tensor, bits: int, run: int) -> torch.Tensor:
    """Of bytes in runs of `run`: the lowest `bits` of each byte of a run, then the next, as ggml
    lays out the codes of a block."""
    runs = packed.reshape(*packed.shape[:-1], -1, 1, run)
    shifts = torch.arange(0, 8, bits, device=packed.device).view(-1, 1)
    return ((runs.int() >> shifts) & (2**bits - 1)).flatten(-3)


def exponents(codes: torch.Tensor) -> torch.Tensor:
    """e8m0: powers of two, 255 is NaN; as bytes, or in their own dtype."""
    if codes.is_floating_point():
        return codes.float()
    powers = torch.exp2(codes.float() - 127)
    return torch.where(codes == 255, torch.nan, powers)
