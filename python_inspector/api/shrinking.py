"""From a case that fails to the smallest one that still does: extents and values are cut, one after
the other, as long as the same gate fails and a budget of time lasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .inputs import Case

if TYPE_CHECKING:
    import torch

Fails = Callable[[Case], bool]
Place = tuple[int, int]
"""A tensor's number among the leaves of a case, and one of its axes."""


def smallest(case: Case, fails: Fails, seconds: float) -> Case:
    """A case of fewer rows, heads and channels and of plainer values that `fails`, too."""
    deadline = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(case):
            if time.monotonic() > deadline:
                return case
            if fails(smaller):
                case, progress = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases that are a step smaller, the smallest first."""
    tensors = tensors_of(case)
    if _may_be_cut(tensors):
        places = _places(tensors)
        for size in sorted(places, reverse=True):
            yield from _cut(case, size, places[size])
        for size, together in places.items():
            if len(together) > 1:
                for place in together:
                    yield from _cut(case, size, [place])
    for i, t in enumerate(tensors):
        yield from (_replaced(case, i, made) for made in _plainer(t))


def tensors_of(case: Case) -> list[torch.Tensor]:
    import torch
    from torch.utils._pytree import tree_leaves

    found = {id(t): t for t in tree_leaves(case.called) if isinstance(t, torch.Tensor)}
    return list(found.values())


def _may_be_cut(tensors: Sequence[torch.Tensor]) -> bool:
    """An index beyond its table ends a GPU's context, which no exception tells in time."""
    return not any(
        t.device.type != "cpu" and not t.is_floating_point() and t.dtype.itemsize > 1
        for t in tensors
    )


def _places(tensors: Sequence[torch.Tensor]) -> dict[int, list[Place]]:
    """By size the axes that are as long: they are one extent, as far as anything says so."""
    places: dict[int, list[Place]] = {}
    for i, t in enumerate(tensors):
        for axis, size in enumerate(t.shape):
            if size > 1:
                places.setdefault(size, []).append((i, axis))
    return places


def _cut(case: Case, size: int, places: Sequence[Place]) -> Iterator[Case]:
    for kept in sorted({1, size // 4, size // 2, size - size // 4, size - 1} - {0, size}):
        for begin in {0: None, size - kept: None}:  # the front, then the end
            tensors = tensors_of(case)
            for i, axis in places:
                tensors[i] = tensors[i].narrow(axis, begin, kept)
            yield _with(case, [_apart(t) for t in tensors])


def _plainer(t: torch.Tensor) -> Iterator[torch.Tensor]:
    """Values in place of others that are less to look at; they are found on the host."""
    import torch

    if not t.is_floating_point() or not t.numel():
        return
    values = t.detach().cpu()
    one = torch.ones_like(values)
    rounded = (values.float() * 4).round() / 4
    for made in (one, values.sign(), values.float().round(), rounded):
        made = made.to(t.dtype)
        if _trouble(made) < _trouble(values):
            yield made.to(t.device)
    flat = values.reshape(-1)
    used = int((flat != 0).sum())
    for kept in (1, used // 2):
        if 0 < kept < used:
            for at in (flat.abs().argsort(descending=True)[:kept], flat.nonzero()[:kept, 0]):
                made = torch.zeros_like(flat)
                made[at] = flat[at]
                yield made.reshape(t.shape).to(t.device)


def _trouble(t: torch.Tensor) -> tuple[int, int, int]:
    """How much there is to look at: less is plainer, so that no two values take turns."""
    return len(t.unique()), int((t != t.round()).sum()), int((t.abs() > 1).sum())


def _replaced(case: Case, at: int, made: torch.Tensor) -> Case:
    tensors = tensors_of(case)
    tensors[at] = made
    return _with(case, tensors)


def _with(case: Case, tensors: Sequence[torch.Tensor]) -> Case:
    from torch.utils._pytree import tree_map

    new = {id(old): t for old, t in zip(tensors_of(case), tensors, strict=True)}
    return case.mapped(lambda it: tree_map(lambda t: new.get(id(t), t), it), case.name, case.drawn)


def _apart(t: torch.Tensor) -> torch.Tensor:
    return t.detach().clone().requires_grad_(t.requires_grad)
