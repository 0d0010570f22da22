"""Functions that fill memory which they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


def destinations(function: Callable[..., Any], args: tuple[Any, ...]) -> list[int]:
    """Which leaves among the arguments a function fills without a look at what was in them."""

    def called(poisoned: Sequence[int]) -> tuple[list[Any], list[Any]]:
        given = deepcopy(args)
        leaves = tree_leaves(given)
        for i in poisoned:
            leaves[i].fill_(1)
        return tree_leaves(function(*given)), leaves

    with torch.no_grad():
        before, (result, after) = tree_leaves(args), called(())
        written = [i for i, t in enumerate(before) if not _alike(t, after[i])]
        again, filled = called(written)
    whole = all(_alike(after[i], filled[i]) for i in written)
    return written if whole and all(map(_alike, result, again)) else []


def _alike(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return True
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (a, b)))


class Filling:
    """A function that is given fresh memory for its destinations. It returns what is in them, or
    its own result where it `returns` one."""

    def __init__(
        self, function: Callable[..., Any], where: Sequence[int], name: str, returns: bool = True
    ) -> None:
        self._function, self._where, self.__name__ = function, where, name
        self._returns = returns

    def __call__(self, *args: Any) -> Any:
        leaves, structure = tree_flatten(args)
        for i in self._where:
            leaves[i] = torch.empty_like(leaves[i])
        result = self._function(*tree_unflatten(leaves, structure))
        if self._returns and result is not None:
            return result
        return tuple(leaves[i] for i in self._where)
