"""Outputs that are too large to store: chosen rows, and a sketch of every row.

A row is a token of one batch entry, as the judge has it. The chosen tokens are the first and the
last, those at tile and window borders, the one with the largest value, and some by hash. The sketch
of a row is its products with 16 vectors of +1 and -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ..errors import RecordError
from .generator import splitmix64

WIDTH = 16
TILE = 64
"""Rows that kernels commonly work on at once."""
_CHOICE_SEED = 1


@dataclass(frozen=True)
class Sampling:
    """Which outputs are sampled, and how many of their rows are stored."""

    above: int = 1 << 16
    """Bytes of an output with its delta; smaller ones are stored whole."""
    random: int = 1
    """Rows chosen by hash."""
    tiles: int = 4
    """Borders of tiles, from the first on, whose rows on both sides are chosen."""


@dataclass
class Sketch:
    """What all rows of an output are known by."""

    reference: torch.Tensor
    """Float64 [rows, 16]."""
    oracle: torch.Tensor
    rms: torch.Tensor
    """Float64 [rows], of the oracle."""


def token_axis(axes: Sequence[str]) -> int | None:
    """Position of the axis whose indices are tokens; None if there is none."""
    for name in ("token", "kv_token"):
        if name in axes:
            return axes.index(name)
    return None


def is_sampled(r: torch.Tensor, axes: Sequence[str], sampling: Sampling | None) -> bool:
    """Whether only some rows of an output are to be stored."""
    axis = token_axis(axes)
    if sampling is None or axis is None or not r.is_floating_point():
        return False
    return r.numel() * (r.element_size() + 4) > sampling.above and r.shape[axis] > 1


def choose_tokens(
    o: torch.Tensor, axes: Sequence[str], sampling: Sampling, window: int | None
) -> list[int]:
    """The tokens to store, ascending."""
    axis = token_axis(axes)
    assert axis is not None
    tokens = o.shape[axis]
    largest = o.abs().amax([i for i in range(o.ndim) if i != axis])
    chosen = {0, tokens - 1, int(largest.argmax())}
    borders = [TILE * i for i in range(1, sampling.tiles + 1)] + [(tokens - 1) // TILE * TILE]
    borders += [] if window is None else [window]
    chosen |= {row for border in borders for row in (border - 1, border) if 0 <= row < tokens}
    hashes = splitmix64(_CHOICE_SEED, 0, sampling.random)
    chosen |= {int(value) % tokens for value in hashes}
    return sorted(chosen)


def take(t: torch.Tensor, axes: Sequence[str], tokens: Iterable[int]) -> torch.Tensor:
    """The rows of the chosen tokens."""
    axis = token_axis(axes)
    assert axis is not None
    return t.index_select(axis, torch.tensor(list(tokens), device=t.device))


def sketch(r: torch.Tensor, o: torch.Tensor, axes: Sequence[str], where: str) -> Sketch:
    """The sketches of reference and oracle; RecordError where either is not finite."""
    if not (bool(r.isfinite().all()) and bool(o.isfinite().all())):
        raise RecordError(
            f"[{where}] has values that are not finite, and only some of its rows are to be "
            "stored: a row that is not cannot hold them; record it whole"
        )
    signs = sign_vectors(_rows(o, axes).shape[1], o.device)
    return Sketch(
        _rows(r, axes) @ signs,
        _rows(o, axes) @ signs,
        _rows(o, axes).square().mean(1).sqrt(),
    )


def sign_vectors(columns: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Float64 [columns, 16]: 1 - 2 (bit j of splitmix64(0, column))."""
    bits = splitmix64(0, 0, columns, device)[:, None] >> torch.arange(WIDTH, device=device) & 1
    return 1.0 - 2.0 * bits.double()


def _rows(t: torch.Tensor, axes: Sequence[str]) -> torch.Tensor:
    """Float64 [batch x token, everything else in order]."""
    axis = token_axis(axes)
    first = [axes.index("batch")] if "batch" in axes else []
    first += [] if axis is None else [axis]
    rest = [i for i in range(t.ndim) if i not in first]
    moved = t.double().permute(first + rest)
    rows = 1
    for size in moved.shape[: len(first)]:
        rows *= size
    return moved.reshape(rows, -1)
