"""hard=: cases that are made of a user's own operands, hard for kernels in other ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .inputs import Case

if TYPE_CHECKING:
    import torch

Change = Callable[..., Any]
Hard = Mapping[str, Sequence[Case]]
"""By kind cases, of which the first that `like` survives counts."""
FEW_VALUES = 2
"""An operand of so few is a mask or a constant, and stays as it is."""


def kinds_of(hard: bool | Sequence[str]) -> tuple[str, ...]:
    """The kinds that are asked for; ValueError for one that is none."""
    if isinstance(hard, bool):
        return tuple(HARD) if hard else ()
    chosen = (hard,) if isinstance(hard, str) else tuple(hard)
    if unknown := [kind for kind in chosen if kind not in HARD]:
        raise ValueError(f"hard: unknown kind {unknown[0]!r}; known are {', '.join(HARD)}")
    return chosen


def hard_cases(case: Case, kinds: Sequence[str]) -> Hard:
    """What each kind makes of one case: all operands are hard, then the first alone.

    The first operand is changed by place, others by value, so that what is equal in them stays
    equal: the halves of a table of cosines, a symmetric matrix. Whole numbers, masks and constants
    stay as they are, and so do shapes, dtypes, devices and strides.
    """
    made = {}
    for kind in kinds:
        first, others = HARD[kind]
        variants = [_changed(case, kind, first, others), _changed(case, kind, first, None)]
        kept: list[Case] = []
        for it in variants:
            if not any(_same(it, before) for before in (case, *kept)):
                kept.append(it)
        if kept:
            made[kind] = kept
    return made


def _changed(case: Case, kind: str, first: Change | None, others: Change | None) -> Case:
    from torch.utils._pytree import tree_map

    made: dict[int, Any] = {}

    def change(value: Any) -> Any:
        if not _is_plain(value):
            return value
        if id(value) not in made:  # an operand that is given twice stays one
            how = others if made else first
            made[id(value)] = value if how is None else _with(value, how)
        return made[id(value)]

    return case.mapped(lambda value: tree_map(change, value), kind)


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor of finite floats that has values enough to be no mask or constant."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not value.is_floating_point():
        return False
    if value.numel() <= FEW_VALUES or value.dtype.itemsize < 2:
        return False
    flat = value.detach().reshape(-1)
    few = (flat == flat[0]) | (flat == flat[-1])
    return bool(flat.isfinite().all()) and not bool(few.all())


def _with(value: torch.Tensor, change: Change) -> torch.Tensor:
    """Changed values with the operand's strides, unless places share their memory."""
    import torch

    x = value.detach().to(torch.float64, memory_format=torch.contiguous_format, copy=True)
    size = 2.0 ** round(math.log2(float(x.square().mean().sqrt()) or 1.0))
    x = change(x, size, torch.finfo(value.dtype)).to(value.dtype)
    if all(step for step, extent in zip(value.stride(), value.shape, strict=True) if extent > 1):
        x = torch.empty_strided(x.shape, value.stride(), dtype=x.dtype, device=x.device).copy_(x)
    return x.requires_grad_(value.requires_grad)


def _same(a: Case, b: Case) -> bool:
    import torch
    from torch.utils._pytree import tree_leaves

    pairs = zip(tree_leaves(a.called), tree_leaves(b.called), strict=True)
    return all(x is y or (isinstance(x, torch.Tensor) and torch.equal(x, y)) for x, y in pairs)


# By place, of the first operand: float64 values, their size (a power of two), finfo. Rows are along
# the last axis.


def _rows(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1]) if x.ndim else x.reshape(1, 1)


def _signed_by_place(x: Any, size: float, info: Any) -> Any:
    if bool((x < 0).any()) and bool((x > 0).any()):
        return x
    import torch

    dice = torch.Generator().manual_seed(x.numel())
    return x * (2 * torch.randint(0, 2, x.shape, generator=dice).to(x) - 1)


def _zero_rows(x: Any, size: float, info: Any) -> Any:
    _rows(x)[::2] = 0
    return x


def _equal_rows(x: Any, size: float, info: Any) -> Any:
    rows = _rows(x)
    rows[::2] = rows[::2, :1]
    return x


def _huge(x: Any, size: float, info: Any) -> Any:
    """One value of every other row, whose square times the length of the row is finite; in others a
    whole row, below zero where the operand has such values."""
    rows = _rows(x)
    most = max(math.sqrt(info.max) / (64 * max(1, rows.shape[1])), 8 * size)
    sign = -1 if bool((x < 0).any()) else 1
    rows[3::4] = (rows[3::4] / size + 4).clamp(1, 8) * (sign * most / 8)
    column = rows[::2, rows.shape[1] // 2]
    column.copy_(column.sign() * most)
    return x


def _infinite(x: Any, size: float, info: Any) -> Any:
    """Minus infinity: once in every fourth row, and everywhere but in the end of the next, as far
    as tiles reach."""
    rows = _rows(x)
    if rows.shape[1] > 1:
        rows[::4, rows.shape[1] // 2] = -math.inf
        rows[1::4, :-1] = -math.inf
    return x


def _denormal_columns(x: Any, size: float, info: Any) -> Any:
    x[..., 1::2] *= info.smallest_normal / (4 * size)
    return x


def _outlier_columns(x: Any, size: float, info: Any) -> Any:
    x[..., :: max(2, x.shape[-1] // 3)] *= 100
    return x


# By value, of every operand.


def _shifted(x: Any, size: float, info: Any) -> Any:
    return x + 32 * size


def _ties(x: Any, size: float, info: Any) -> Any:
    return (x * (4 / size)).round() * (size / 4)


def _small(x: Any, size: float, info: Any) -> Any:
    return x / 1024


def _signed_by_value(x: Any, size: float, info: Any) -> Any:
    if bool((x < 0).any()) and bool((x > 0).any()):
        return x
    return x * (1 - 2 * ((x / (4 * size * info.eps)).floor() % 2))


def _zero_values(x: Any, size: float, info: Any) -> Any:
    x[x.abs() < size / 2] = 0
    return x


def _denormal_values(x: Any, size: float, info: Any) -> Any:
    x[x.abs() < size / 2] *= info.smallest_normal / (4 * size)
    return x


def _outlier_values(x: Any, size: float, info: Any) -> Any:
    x[x.abs() > 2 * size] *= 100
    return x


HARD: dict[str, tuple[Change, Change | None]] = {
    "signed": (_signed_by_place, _signed_by_value),
    "zeros": (_zero_rows, _zero_values),
    "equal": (_equal_rows, None),
    "huge": (_huge, None),
    "shifted": (_shifted, None),
    "outliers": (_outlier_columns, _outlier_values),
    "inf": (_infinite, None),
    "denormals": (_denormal_columns, _denormal_values),
    "ties": (_ties, _ties),
    "small": (_small, _small),
}
"""What becomes of the first operand, and of all others."""


def flattened(cases: Sequence[Case], hard: Hard) -> Iterator[Case]:
    """All that a function is called with, in the order in which it is."""
    yield from cases
    for variants in hard.values():
        yield from variants
