"""A set of tensors' storages."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class Storages:
    """Of tensors, by address. Each is referred to weakly, so that as long as it is in here no later
    storage gets its address."""

    def __init__(self) -> None:
        self._refs: dict[int, StorageWeakRef] = {}

    def add(self, t: torch.Tensor) -> None:
        storage = t.untyped_storage()
        if storage._cdata not in self._refs:
            self._refs[storage._cdata] = StorageWeakRef(storage)

    def discard(self, t: torch.Tensor) -> None:
        self._refs.pop(t.untyped_storage()._cdata, None)

    def __contains__(self, t: torch.Tensor) -> bool:
        return t.untyped_storage()._cdata in self._refs
