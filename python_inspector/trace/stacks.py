"""Several runs of the same code at once: each tensor of the run represents a stack of samples.

Row 0 is the run itself, what the code sees; the other rows are the simulated kernels. The stack is
found by the tensor's storage, which holds all rows one behind the other: so a view, a slice or a
transposition of a tensor has the same view of every row without being followed, and a write in
place reaches every view. Storages without an entry are the same in all runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_SWEEP = 256
"""Entries that are made between two looks for storages that are gone."""


@dataclass
class _Entry:
    ref: StorageWeakRef
    """Keeps the storage's address from being used again as long as the entry is there."""
    bytes: int
    """Of one row."""
    apart: torch.Tensor | None
    """All rows as [rows, bytes], where the storage itself holds row 0 alone."""
    wide: torch.Tensor | None = None
    """All rows as [rows, elements] in float32, of a tensor that is narrower and represents them."""


class Stacks:
    """The samples of a run's tensors; `rows` counts the run itself, too."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._entries: dict[int, _Entry] = {}
        self._made = 0

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, t: torch.Tensor) -> torch.Tensor | None:
        """The stack [rows, *t.shape] as a view, None where all runs have the same."""
        entry = self._entries.get(t.untyped_storage()._cdata)
        return None if entry is None else self._view(t, entry)

    def adopt(self, stack: torch.Tensor) -> torch.Tensor:
        """Row 0 of a fresh stack, as the tensor that represents it."""
        dense = torch.ops.aten.is_non_overlapping_and_dense(stack)
        row = stack[0]
        whole = stack.untyped_storage().nbytes() == stack.numel() * stack.element_size()
        if not (dense and whole and stack.stride(0) == row.numel()):
            stack = stack.clone(memory_format=torch.contiguous_format)
            row = stack[0]
        if row.numel():
            self._enter(row, None)
        return row

    def adopt_wide(self, stack: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of a narrower dtype that represents the samples as they are, in float32."""
        wide = stack.float().contiguous()
        row = wide[0].to(dtype)
        if row.numel():
            self._enter(row, None, wide.reshape(self.rows, -1))
        return row

    def write(self, t: torch.Tensor, stack: torch.Tensor) -> None:
        """Overwrites all rows of `t`."""
        entry = self._entries.get(t.untyped_storage()._cdata) or self._part(t)
        self._view(t, entry).copy_(stack)
        if entry.apart is not None or entry.wide is not None:
            t.copy_(stack[0])

    def _part(self, t: torch.Tensor) -> _Entry:
        """A storage that held one value for all runs gets rows of its own."""
        flat = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
        return self._enter(t, flat.expand(self.rows, -1).clone())

    def _enter(
        self, t: torch.Tensor, apart: torch.Tensor | None, wide: torch.Tensor | None = None
    ) -> _Entry:
        self._made += 1
        if self._made % _SWEEP == 0:
            gone = [key for key, entry in self._entries.items() if entry.ref.expired()]
            for key in gone:
                del self._entries[key]
        storage = t.untyped_storage()
        alone = apart is not None or wide is not None
        size = storage.nbytes() if alone else storage.nbytes() // self.rows
        entry = _Entry(StorageWeakRef(storage), size, apart, wide)
        self._entries[storage._cdata] = entry
        return entry

    def _view(self, t: torch.Tensor, entry: _Entry) -> torch.Tensor:
        if entry.wide is not None:
            step = entry.wide.shape[1]
            return entry.wide.as_strided(
                (self.rows, *t.shape), (step, *t.stride()), t.storage_offset()
            )
        source = t if entry.apart is None else entry.apart.view(-1).view(t.dtype)
        step = entry.bytes // t.element_size()
        return source.as_strided((self.rows, *t.shape), (step, *t.stride()), t.storage_offset())
