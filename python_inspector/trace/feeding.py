"""Which tensors of a run are made of its discrete choices, element by element or mixed.

An element that follows from one choice alone (its index, cast, moved, looked up in a table) has a
value for each way to choose, and those are all that are right. One that several choices feed (a
count of them) has more than any few runs show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from .operations import MOVES, tensors

_MOVED = MOVES - {"where", "masked_fill", "index_put", "masked_scatter", "masked_select"}
_KEPT = {"clone", "_to_copy"}


class Feeding:
    """Of each storage, the choices that feed it."""

    def __init__(self) -> None:
        self._single: dict[int, tuple[StorageWeakRef, bool]] = {}
        self._origins: dict[int, Any] = {}

    def chosen(self, choice: Any, operands: Any, held: torch.Tensor) -> None:
        """A choice was made of operands: it feeds its result, element by element where none of
        them was chosen itself and all that is right is known."""
        fed = {_key(t): t for t in tensors(operands) if self._is_fed(t)}
        cast = choice.quantised and len(fed) == 1  # of what was rounded before
        alone = not fed or (cast and all(map(self.is_single, fed.values())))
        self._set(held, alone and choice.complete)
        self._origins[_key(held)] = choice

    def computed(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if not self._single or func.is_view:
            return
        fed = {_key(t): t for t in tensors((args, kwargs)) if self._is_fed(t)}
        if not fed:
            return
        name = func._schema.name.partition("::")[2]
        name = name if name.startswith("_") else name.removesuffix("_")
        single = len(fed) == 1 and (name in _MOVED or torch.Tag.pointwise in func.tags)
        single = single and all(self._single[key][1] for key in fed)
        for t in tensors(result):
            self._set(t, single)
            if name in _KEPT and next(iter(fed)) in self._origins:
                self._origins[_key(t)] = self._origins[next(iter(fed))]

    def is_single(self, t: torch.Tensor) -> bool:
        """Whether each element follows from one choice at most, all ways of which are known."""
        return not self._is_fed(t) or self._single[_key(t)][1]

    def origin(self, t: torch.Tensor) -> Any:
        """The choice that the tensor is, None for what was made of it."""
        return self._origins.get(_key(t)) if self._is_fed(t) else None

    def _is_fed(self, t: torch.Tensor) -> bool:
        return _key(t) in self._single

    def _set(self, t: torch.Tensor, single: bool) -> None:
        key = _key(t)
        self._origins.pop(key, None)
        self._single[key] = (StorageWeakRef(t.untyped_storage()), single)


def _key(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)
