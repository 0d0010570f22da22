"""Rows of two outputs, bit by bit. NaN equals NaN: which bits it has means nothing."""

from __future__ import annotations

import torch

from .relations import Variation

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference(
    base: torch.Tensor, other: torch.Tensor | None, axis: int | None, variation: Variation
) -> tuple[int, str, str] | None:
    """How many elements differ, the first place, and words; None where none does. `axis` has the
    rows; None: all is compared. Without a place there is nothing to compare."""
    if other is None:
        return base.numel(), "", f"is not returned {variation.words}"
    expected = list(base.shape)
    if axis is not None:
        expected[axis] = len(variation.source)
    if list(other.shape) != expected or other.dtype != base.dtype:
        told = f"is {list(other.shape)} {other.dtype}, expected {expected} {base.dtype}"
        return base.numel(), "", f"{told}, {variation.words}"
    a, b = _rows(base, other, axis, variation)
    differs = ~_same(a, b)
    count = int(differs.sum())
    if not count:
        return None
    at = tuple(differs.nonzero()[0].tolist())
    shown = list(at)
    if axis is not None:
        shown[axis] = variation.source[variation.judged[at[axis]]]
    x, y = a[at].item(), b[at].item()
    told = (
        f"{shown} is {_number(x)} in the whole call, {_number(y)} {variation.words}: other bits in "
        f"{count} of {differs.numel()} elements"
    )
    if base.is_floating_point():
        told += f", {_largest(a, b)} apart at most"
    return count, f"{shown} {variation.words}", told


def put(
    base: torch.Tensor, other: torch.Tensor, axis: int | None, variation: Variation
) -> torch.Tensor:
    """`base` with rows of the other in their places."""
    if axis is None:
        return other
    sources = [variation.source[place] for place in variation.judged]
    rows = other.index_select(axis, _index(variation.judged, other))
    return base.index_copy(axis, _index(sources, base), rows)


def _rows(
    base: torch.Tensor, other: torch.Tensor, axis: int | None, variation: Variation
) -> tuple[torch.Tensor, torch.Tensor]:
    if axis is None:
        return base, other
    sources = [variation.source[place] for place in variation.judged]
    return (
        base.index_select(axis, _index(sources, base)),
        other.index_select(axis, _index(variation.judged, other)),
    )


def _index(places: tuple[int, ...] | list[int], t: torch.Tensor) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.long, device=t.device)


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not a.is_floating_point():
        return a == b
    kind = _INTEGERS[a.element_size()]
    return (a.contiguous().view(kind) == b.contiguous().view(kind)) | (a.isnan() & b.isnan())


def _largest(a: torch.Tensor, b: torch.Tensor) -> str:
    apart = (a.double() - b.double()).abs()
    finite = apart[apart.isfinite()]
    return f"{finite.max().item():.3g}" if len(finite) == apart.numel() else "infinitely"


def _number(value: float | int | bool) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
