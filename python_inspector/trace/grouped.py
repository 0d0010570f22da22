"""Products of groups of rows with a matrix each, as layers of experts compute them.

torch has no float64 kernel for them: here they are done group by group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .simulation import Operands

_NAMES = {"aten::_grouped_mm", "transformers::grouped_mm_fallback"}
"""The second is what transformers calls where torch lacks the first; it computes the same."""


def is_grouped(func: Any) -> bool:
    return func._schema.name in _NAMES


def grouped_product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    ranks: tuple[int, int] | None = None,
) -> torch.Tensor:
    """a @ b in float64, where `offs` says at which row, column or term each group ends.

    The operand of rank 2 is cut: rows of a, columns of b, or the terms of both. Rows beyond the
    last group are zero. `ranks` are those of the operands without rows of samples in front.
    """
    a, b = a.double(), b.double()
    rank = ranks or (a.ndim, b.ndim)
    if offs is None or rank == (3, 3):
        made = torch.matmul(a, b)
    else:
        made = _cut(a, b, [int(end) for end in offs.tolist()], rank)
    return made if bias is None else made + bias.double()


def _cut(a: torch.Tensor, b: torch.Tensor, ends: list[int], rank: tuple[int, int]) -> torch.Tensor:
    groups = list(enumerate(zip([0, *ends[:-1]], ends, strict=True)))
    if rank == (2, 2):
        parts = [a[..., begin:end] @ b[..., begin:end, :] for _, (begin, end) in groups]
        return torch.stack(parts, -3)
    if rank == (3, 2):
        cols = [a[..., g, :, :] @ b[..., begin:end] for g, (begin, end) in groups]
        return _padded(torch.cat(cols, -1), b.shape[-1], -1)
    rows = [a[..., begin:end, :] @ b[..., g, :, :] for g, (begin, end) in groups]
    return _padded(torch.cat(rows, -2), a.shape[-2], -2)


def _padded(made: torch.Tensor, size: int, axis: int) -> torch.Tensor:
    missing = list(made.shape)
    missing[axis] = size - missing[axis]
    return torch.cat([made, made.new_zeros(missing)], axis) if missing[axis] > 0 else made


def grouped(operands: Operands) -> torch.Tensor:
    """A grouped product, [rows, ...] where an operand has rows."""
    ranks = tuple(t.ndim - operands.has_rows(t) for t in operands.args[:2])
    return grouped_product(*operands.args, **operands.kwargs, ranks=(ranks[0], ranks[1]))
