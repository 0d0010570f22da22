"""Which of a run's listed operations each of its tensors is made by, and which sums are of values
that were rounded to 16 bits. Their order in the list does not tell: an output may be computed
behind others that it has nothing to do with.

Tensors are known by their storage, as in stacks.py: a view is made by what its storage is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from .arithmetic import name_of
from .given import Replay
from .operations import MAKERS, tensors

_REPLACE = {"copy", "fill", "zero"}
"""Leave nothing of what their first argument held."""


class Flow:
    """Sets of operations are the bits of a number, by their place in the list."""

    def __init__(self, operations: list[dict[str, Any]], replay: Replay | None) -> None:
        self._operations = operations
        self._sees_all = replay is None or not replay.given.leaves_torch
        """Else nothing is said."""
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        """By a storage's address, which the reference keeps from being used again."""
        self._read = 0
        """By what made the values that the code has read: any later operation may follow them."""
        self._narrow = 0
        """The roundings to 16 bits."""
        self._seen = 0

    def begin(self) -> tuple[int, int]:
        """To be asked before an operation, for after()."""
        return self._seen, len(self._operations)

    def after(
        self,
        begun: tuple[int, int],
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Of each operation of a run, in order; of one that consists of others after those."""
        seen, first = begun
        if seen != self._seen or not self._sees_all:
            return
        self._seen += 1
        if func.is_view:
            return
        name, given = name_of(func), tensors((args, kwargs))
        written = [result] if isinstance(result, torch.Tensor) else tensors(result)
        if func._schema.is_mutable and given:
            written.append(given[0])
            if name in _REPLACE and _is_whole(given[0]):
                del given[0]
        made = self._read
        for t in given:
            made |= self._made.get(_key(t), (None, 0))[1]
        if not written:
            self._read = made
        if not written or name in MAKERS:
            return
        made |= self._noted(range(first, len(self._operations)), made)
        for t in written:
            self._made[_key(t)] = StorageWeakRef(t.untyped_storage()), made

    def makers(self, t: torch.Tensor) -> list[int] | None:
        """The places of those that it is made by, None where that is not known."""
        found = self._made.get(_key(t))
        if found is None:
            return None
        return [place for place in range(len(self._operations)) if found[1] >> place & 1]

    def _noted(self, places: Sequence[int], made: int) -> int:
        """New entries of the list, of operands that were made by these: entries that are sums say
        where no rounding in front of them feeds them."""
        fed = bool(made & self._narrow)
        new = 0
        for place in places:
            entry = self._operations[place]
            if "terms" in entry and self._narrow and not fed:
                entry["fed"] = False
            new |= 1 << place
            if entry["stores"] in ("f16", "bf16"):
                self._narrow |= 1 << place
        return new


def _is_whole(t: torch.Tensor) -> bool:
    """Whether it is all of its storage."""
    return t.numel() * t.element_size() == t.untyped_storage().nbytes()


def _key(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)
