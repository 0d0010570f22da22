"""Which discrete choices correct kernels may make otherwise, and what would come of it.

A choice (an expert, a comparison) is decidable where the float64 values that it compares are
further apart than simulated correct kernels move them. `doubt()` marks the others. other_choices()
then makes those the other way in one more float64 run: what its outputs have elsewhere depends on
an undecidable choice, be it an expert's index or a row that went through another expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .given import Choice, Follow, selection_axis
from .orders import MOST, Places, turns
from .simulation import Operands

TIMES = 4.0
"""Deviations that either value may be off by: RMS over the simulated kernels, of an element or of
its whole row, whichever is more."""

_COMPARISONS = {"gt", "ge", "lt", "le", "eq", "ne"}
_EQUALITIES = {"eq", "ne"}
_ORDERS = {"topk", "sort", "argmax", "argmin", "max", "min"}


def doubt(choice: Choice, operands: Operands) -> None:
    """Adds to `choice.doubtful` what the simulated kernels' operands say.

    Of a comparison, bools of its result's shape. Of an order, bools [.., n - 1]: whether a value
    at place i or before may change places with one behind it.
    """
    if choice.operands is None:
        return
    name = choice.func._schema.name.partition("::")[2]
    if name in _COMPARISONS:
        found = _doubtful_comparison(choice, operands)
    elif name in _ORDERS:
        found = _doubtful_order(choice, operands)
    else:
        found = _chosen_otherwise(choice)
    if found is not None:
        known = choice.doubtful
        choice.doubtful = found if known is None else known | found


def any_doubt(choices: Sequence[Choice]) -> bool:
    return any(c.doubtful is not None and bool(c.doubtful.any()) for c in choices)


def decide_otherwise(choices: Sequence[Choice], most: int = MOST) -> int:
    """Works out the other ways in which doubtful choices may be made, `most` of each; how many runs
    go through all of them."""
    for choice in choices:
        if choice.operands is None or choice.doubtful is None or not bool(choice.doubtful.any()):
            continue
        if choice.quantised:
            continue  # what simulated kernels have is known
        name = choice.func._schema.name.partition("::")[2]
        if name in _ORDERS:
            choice.others, choice.complete = _other_orders(choice, most)
        elif name in _COMPARISONS:
            choice.others = [choice.held[0] ^ choice.doubtful]
        else:
            choice.others = [_free(choice)]
    return max((len(choice.others) for choice in choices if not choice.quantised), default=0)


Only = Callable[[Choice], bool] | None


def parts_to_decide(choices: Sequence[Choice]) -> list[Only]:
    """All that is in doubt (None), then orders and the rest alone where there are both: of two that
    are decided otherwise at once, the second may undo what the first does."""
    doubtful = [choice for choice in choices if choice.others and not choice.quantised]
    orders = [choice for choice in doubtful if is_order(choice)]
    if not orders or len(orders) == len(doubtful):
        return [None]
    return [None, is_order, lambda choice: not is_order(choice)]


def is_order(choice: Choice) -> bool:
    return choice.func._schema.name.partition("::")[2] in _ORDERS


def other_choices(turn: int, *, quantised: bool = False, only: Only = None) -> Follow:
    """What a run follows that decides the doubtful choices in another way, the `turn`th: those of
    `quantised` values, or all others, or `only` some of them.

    Where other operands come in, another choice made them: the run is free there.
    """

    def other(choice: Choice) -> torch.Tensor:
        counts = choice.quantised == quantised and (only is None or only(choice))
        others = choice.others if counts else []
        return others[turn % len(others)] if others else choice.held[0]

    return deciding(other)


def deciding(other: Callable[[Choice], torch.Tensor]) -> Follow:
    """What a run follows that decides each choice as `other` says, where its operands are those of
    the float64 run."""

    def follow(choice: Choice, operands: tuple[Any, Any]) -> tuple[torch.Tensor, ...]:
        free = choice.func(*operands[0], **operands[1])
        free = free if isinstance(free, tuple) else (free,)
        own = free if choice.quantised else tuple(t for t in free if not t.is_floating_point())
        if choice.operands is None:
            return own
        return (_where_unchanged(choice, operands, other(choice), own[0]), *own[1:])

    return follow


def _where_unchanged(
    choice: Choice, operands: tuple[Any, Any], other: torch.Tensor, own: torch.Tensor
) -> torch.Tensor:
    """`other` in the rows whose operands are those of the float64 run, `own` elsewhere."""
    assert choice.operands is not None
    same: torch.Tensor | None = None
    for then, now in zip(choice.operands[0], operands[0], strict=False):
        if not isinstance(then, torch.Tensor) or not then.is_floating_point():
            continue
        if then.shape != now.shape:
            return own
        equal = (then == now) | (then.isnan() & now.isnan())
        name = choice.func._schema.name.partition("::")[2]
        if name in _ORDERS:
            axis = _axis(choice)
            equal = equal.all() if axis is None else equal.all(axis, keepdim=own.ndim == then.ndim)
        elif not _is_elementwise(equal, own):  # the borders of bucketize
            if not bool(equal.all()):
                return own
            continue
        same = equal if same is None else same & equal
    if same is None:
        return own
    if choice.quantised:  # torch.where takes no 8-bit floats
        return torch.where(same, other.double(), own.double()).to(other.dtype)
    return torch.where(same, other, own)


def _is_elementwise(operand: torch.Tensor, result: torch.Tensor) -> bool:
    sizes = zip(reversed(operand.shape), reversed(result.shape), strict=False)
    return operand.ndim <= result.ndim and all(a in (1, b) for a, b in sizes)


def _doubtful_comparison(choice: Choice, operands: Operands) -> torch.Tensor | None:
    if not operands.stacked:
        return None
    assert choice.operands is not None
    o = _difference(choice.operands[0])
    rows = [a if operands.has_rows(a) else _one_row(a) for a in operands.args[:2]]
    rank = o.ndim
    off = _difference([_raised(a, rank) for a in rows]) - o
    tolerance = _tolerance(off)
    # What every kernel finds equal is compared with itself: an element with the maximum of its row.
    certain = (o == 0) & (off == 0).all(0)
    return ((o.abs() < tolerance) & ~certain).expand(choice.held[0].shape)


def _difference(pair: Sequence[Any]) -> torch.Tensor:
    """a - b, 0 where both are the same infinity."""
    device = max((v for v in pair[:2] if isinstance(v, torch.Tensor)), key=torch.Tensor.dim).device
    a, b = (torch.as_tensor(v, dtype=torch.float64, device=device) for v in pair[:2])
    a, b = torch.broadcast_tensors(a.double(), b.double())
    return torch.where(a == b, 0.0, a - b)


def _one_row(value: Any) -> Any:
    return value[None] if isinstance(value, torch.Tensor) else value


def _raised(value: Any, rank: int) -> Any:
    """Rows of samples in front of as many dimensions as the result has."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.reshape(value.shape[0], *[1] * (rank + 1 - value.ndim), *value.shape[1:])


def _tolerance(off: torch.Tensor) -> torch.Tensor:
    """How far an element of [rows, ...] deviations may be off; the first is the rounded model."""
    squares = off.nan_to_num(0.0, 0.0, 0.0).square()
    own = squares.mean(0)
    row = own.mean(-1, keepdim=True) if own.ndim else own
    return TIMES * torch.maximum(own, row.expand_as(own)).sqrt()


def _doubtful_order(choice: Choice, operands: Operands) -> torch.Tensor | None:
    assert choice.operands is not None
    axis = _axis(choice)
    x = _last(choice.operands[0][0], axis, 0)
    if not x.is_floating_point() or x.shape[-1] < 2:
        return None
    stack = operands.args[0]
    if operands.has_rows(stack):
        samples = _last(stack, axis, 1)
        off = torch.where(samples == x, 0.0, samples - x)
        tolerance = _tolerance(off)
    else:
        tolerance = torch.zeros_like(x)
    known = choice.tolerance
    choice.tolerance = tolerance if known is None else torch.maximum(known, tolerance)
    _, v, t = _ordered(choice)
    least = (v - t)[..., :-1].cummin(-1).values
    most = (v + t)[..., 1:].flip(-1).cummax(-1).values.flip(-1)
    return least <= most


def _ordered(choice: Choice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All indices in the choice's order, the values at these, the first one the largest,
    and their tolerances."""
    assert choice.operands is not None and choice.tolerance is not None
    x = _last(choice.operands[0][0], _axis(choice), 0)
    order = _order(choice, x)
    sign = 1.0 if _is_descending(choice) else -1.0
    return order, (sign * x).gather(-1, order), choice.tolerance.gather(-1, order)


def _other_orders(choice: Choice, most: int) -> tuple[list[torch.Tensor], bool]:
    """Of the form of the choice."""
    assert choice.doubtful is not None
    order, v, t = _ordered(choice)
    axis, held = _axis(choice), choice.held[0]
    flat = axis is None or held.ndim < choice.operands[0][0].ndim  # type: ignore[index]
    first = 1 if flat else held.shape[axis or 0]
    found = turns(order, choice.doubtful, Places.of(v, t), first, most)
    if flat:
        return [other[..., 0].reshape(held.shape) for other in found.orders], found.complete
    return [other.movedim(-1, axis or 0) for other in found.orders], found.complete


def _order(choice: Choice, x: torch.Tensor) -> torch.Tensor:
    """All indices along the last axis: those that the reference chose in its order, then the others
    by float64's."""
    axis = _axis(choice)
    held = choice.held[0]
    if axis is None:
        held = held.reshape(1)
    elif held.ndim < x.ndim:
        held = held.unsqueeze(-1)
    else:
        held = held.movedim(axis, -1)
    if held.shape[-1] == x.shape[-1]:
        return held
    rank = torch.where(x.isnan(), torch.inf, -x if _is_descending(choice) else x)
    rank = rank.scatter(-1, held, -torch.inf)
    others = torch.argsort(rank, dim=-1, stable=True)
    chosen = torch.zeros_like(rank, dtype=torch.bool).scatter(-1, held, True)
    keep = ~chosen.gather(-1, others)
    others = others[keep].reshape(*others.shape[:-1], -1)
    return torch.cat([held, others], -1)


def _axis(choice: Choice) -> int | None:
    """None where all elements are compared: argmax without an axis."""
    assert choice.operands is not None
    args, kwargs = choice.operands
    name = choice.func._schema.name.partition("::")[2]
    if name in ("argmax", "argmin") and (len(args) < 2 or args[1] is None):
        return kwargs.get("dim")
    return selection_axis(choice.func, args, kwargs)


def _is_descending(choice: Choice) -> bool:
    assert choice.operands is not None
    args, kwargs = choice.operands
    name = choice.func._schema.name.partition("::")[2]
    if name in ("topk", "sort"):
        word = "largest" if name == "topk" else "descending"
        at = [argument.name for argument in choice.func._schema.arguments].index(word)
        return bool(args[at] if len(args) > at else kwargs.get(word, name == "topk"))
    return name in ("max", "argmax")


def _last(x: torch.Tensor, axis: int | None, rows: int) -> torch.Tensor:
    """With the compared axis last, behind `rows` dimensions of samples."""
    if axis is None:
        return x.flatten(rows)
    if x.ndim == rows:
        return x.unsqueeze(-1)
    return x.movedim(axis + rows if axis >= 0 else axis, -1)


def _free(choice: Choice) -> torch.Tensor:
    free = choice.free
    parts = free if isinstance(free, (tuple, list)) else (free,)
    return next(t for t in parts if isinstance(t, torch.Tensor) and not t.is_floating_point())


def _chosen_otherwise(choice: Choice) -> torch.Tensor | None:
    """Of other operations: where float64 alone chooses otherwise."""
    other = _free(choice)
    return None if other.shape != choice.held[0].shape else other != choice.held[0]


Differs = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def touched(o: torch.Tensor, other: torch.Tensor, samples: torch.Tensor | None) -> torch.Tensor:
    """Elements of an output that depend on a doubtful choice.

    `o` and `other` are the float64 outputs under the reference's and under the other choices,
    `samples` [rows, ...] those of simulated kernels: a choice that moves an element by less than
    rounding does (two experts in another order) is no such choice.
    """
    if o.shape != other.shape:
        return torch.ones_like(o, dtype=torch.bool)
    if not o.is_floating_point():
        return o != other
    off = (other - o).nan_to_num(0.0, torch.inf, torch.inf).abs()
    off = torch.where(o.isnan() ^ other.isnan(), torch.inf, off)
    if samples is None:
        return off > 0
    usual = _tolerance((samples.double() - o).nan_to_num(0.0)) / TIMES / 2
    return off > usual
