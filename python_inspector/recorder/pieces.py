"""Rows of a call whose results are made row by row: the same call of some of them alone.

A row is an index of the first axis along which all outputs have the same number, above one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..foreign import is_cache
from ..format.host_copy import is_host
from ..trace.copies import is_state
from .one_call import Arguments

MOST_ALONE = 4
"""Operands that are tried as the only one with rows."""


@dataclass(frozen=True)
class Rows:
    """Which operands of a call have the rows of its outputs."""

    axis: int
    count: int
    operands: frozenset[int]
    """Their ids."""

    def of(self, arguments: Arguments, at: Sequence[int]) -> Arguments:
        """Arguments of the call of these rows."""

        def cut(value: Any) -> Any:
            return self.taken(value, at) if id(value) in self.operands else value

        args, kwargs = tree_map(cut, (tuple(arguments[0]), dict(arguments[1])))
        return args, kwargs

    def taken(self, t: torch.Tensor, at: Sequence[int]) -> torch.Tensor:
        """A copy of these rows of an operand or an output."""
        if isinstance(at, range):
            made = t.detach().narrow(self.axis, at.start, len(at)).clone()
        else:
            made = t.detach().index_select(self.axis, torch.tensor(at, device=t.device))
        return made.requires_grad_() if t.requires_grad else made


def rows_of(arguments: Arguments, outputs: Mapping[str, torch.Tensor], most: int) -> Iterator[Rows]:
    """Which operands may have the rows of the outputs, the likeliest first; `most` rows at most
    are taken at once."""
    found = _axis_of(list(outputs.values()))
    leaves = tree_leaves(arguments)
    if found is None or any(is_cache(it) or isinstance(it, torch.nn.Module) for it in leaves):
        return
    if any(is_state(it) for it in leaves if not isinstance(it, torch.Tensor)):
        return
    axis, count = found
    tensors = {id(t): t for t in leaves if isinstance(t, torch.Tensor)}
    fit = [t for t in tensors.values() if t.ndim > axis and t.shape[axis] == count]
    tried = [fit, *([t] for t in fit[:MOST_ALONE] if len(fit) > 1)]
    for operands in tried:
        if operands and _is_safe(operands, list(tensors.values()), count, most):
            yield Rows(axis, count, frozenset(id(t) for t in operands))


def _axis_of(outputs: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """The axis of the rows, and how many there are."""
    least = min((t.ndim for t in outputs), default=0)
    for axis in range(least):
        extents = {t.shape[axis] for t in outputs}
        if extents != {1}:
            return (axis, extents.pop()) if len(extents) == 1 else None
    return None


def _is_safe(
    cut: Sequence[torch.Tensor], operands: Sequence[torch.Tensor], count: int, most: int
) -> bool:
    """Whether no index can be beyond a table that is cut: on an accelerator that ends the
    process's use of it."""
    if not any(t.is_floating_point() for t in cut):
        return True
    indices = [t for t in operands if not (t.is_floating_point() or t.is_complex())]
    indices = [t for t in indices if t.dtype != torch.bool and t.numel() and not is_host(t.device)]
    return all(not min(count, most) <= int(t.max()) < count for t in indices)
