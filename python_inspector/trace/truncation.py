"""Products that accumulate as tensor cores do: blocks of 16 exact products, then truncation.

The sum so far is float32; adding a block to it cuts the result off toward zero. The rounded model's
products are accumulated so, in the order of their terms. Where a cut falls within the last place is
chance: each simulated kernel is also off by as much as that chance varies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..format.host_copy import is_host
from .simulation import Operands, Simulation

BLOCK = 16
LEAST_TERMS = 1024
"""Sums shorter than this lose less than other orders do: they are not simulated."""
_ROOM = 1 << 16
"""Elements of the blocks' sums that are made at once, on a CPU."""
_ROOM_ON_DEVICE = 1 << 27
_LOSSES = 1 << 26
"""Elements whose losses are kept for further simulated kernels, on a CPU."""
_LOSSES_ON_DEVICE = 1 << 28
_SHARED_ON_DEVICE = 1 << 27
"""Elements whose losses are kept for the parts of a block, there."""
_WIDE_ON_DEVICE = 1 << 27
"""Elements of a weight of which the losses are worked out at once, there: a head's float64 copies
take as much memory as all else."""
_NEAR = 2.0**-6
"""Inputs that differ by so much of their size lose as much."""
_GROUP = 4
"""Blocks of which an accelerator looks at one, at least."""
_FEW = 2 * _GROUP
"""Blocks of which it looks at each."""
_LOOKS = 72
"""Blocks that it looks at of long sums."""
_MANY = 24
"""Blocks of which one in three tells how much is left to chance."""
_OPERANDS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
_KEPT = -(1 << 29)  # of a float64's bits those that float32 has, too
_POWER = 0x7FF << 52  # of a float64's bits those of the power of two below it


def applies(name: str) -> bool:
    return name in _OPERANDS


def cut_off(
    name: str,
    operands: Operands,
    exact: torch.Tensor,
    stacked: bool,
    simulation: Simulation,
    out: torch.Tensor,
) -> None:
    """Writes to `out` the results of the kernels that truncate; those of `exact`, if that is a
    stack, are written to, too."""
    lost, scale = _loss_of(name, operands, simulation)
    (cutting,) = simulation.samples(truncating=True)
    less = exact[cutting.rows].sub_(lost) if stacked else exact - lost
    torch.addcmul(less, cutting.normal(scale), scale, out=out)


def _loss_of(
    name: str, operands: Operands, simulation: Simulation
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounded model's, the same for all simulated kernels, and the deviation of each from it.
    Those that run later, for lack of room, need not make them again."""
    kept, place = simulation.losses, len(simulation.operations)
    if kept is not None and place in kept:
        return kept[place]
    first, _ = operands.first_row()
    found = _shared.loss(*(first[i] for i in _OPERANDS[name]))
    if kept is not None:
        room = _LOSSES if is_host(found[0].device) else _LOSSES_ON_DEVICE
        if sum(lost.numel() for lost, _ in kept.values()) + found[0].numel() <= room:
            kept[place] = found
    return found


@dataclass
class _Known:
    """What a product with a weight loses."""

    weight: StorageWeakRef
    """Keeps the storage's address from being used again as long as the entry is there."""
    version: int
    a: torch.Tensor
    lost: torch.Tensor
    scale: torch.Tensor


class _Shared:
    """What products of a block lose, on an accelerator, for the blocks that it consists of: a
    projection belongs to an attention and that to a layer, with inputs that differ by roundings.
    Those move the last places that are cut off, not how much is lost (`_some_cuts` has others,
    too). Only what the outermost block computes is kept, so it does not matter which of its parts
    are recorded with it, or were recorded before."""

    def __init__(self) -> None:
        self.keeps = False
        self.known: dict[tuple[Any, ...], _Known] = {}

    def loss(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What a @ b loses, and its deviation."""
        storage = b.untyped_storage()
        key = (storage._cdata, b.storage_offset(), b.shape, b.stride(), b.dtype)
        version = None if b.is_inference() else b._version
        known = self.known.get(key)
        if known is not None and known.version == version and _is_near(a, known.a):
            return known.lost, known.scale
        lost, variance = loss(a, b)
        scale = variance.sqrt()
        on_device = not is_host(b.device)
        if self.keeps and on_device and known is None and version is not None:
            size = sum(known.lost.numel() for known in self.known.values())
            if size + lost.numel() <= _SHARED_ON_DEVICE:
                lost, scale = lost.float(), scale.float()
                self.known[key] = _Known(StorageWeakRef(storage), version, a.clone(), lost, scale)
        return lost, scale


_shared = _Shared()


@contextmanager
def keeping(keeps: bool = True) -> Iterator[None]:
    """What products lose inside is kept for other blocks with their weights until forget()."""
    before, _shared.keeps = _shared.keeps, keeps
    try:
        yield
    finally:
        _shared.keeps = before


def forget() -> None:
    """Nothing is kept from here on."""
    _shared.known.clear()


def _is_near(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether they differ by roundings to 16 bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    sizes = [torch.linalg.vector_norm(t, dtype=torch.float32) for t in (a - b, a)]
    return bool(sizes[0] <= _NEAR * sizes[1])


def loss(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a @ b loses by truncation, and the variance of that if every cut fell anywhere."""
    a = a.double()
    every = is_host(a.device) or a.shape[-1] <= _FEW * BLOCK
    width = b.shape[-1]
    if b.ndim == 2 and not is_host(b.device):
        width = max(1, _WIDE_ON_DEVICE // b.shape[0])
    found = []
    for columns in b.split(width, -1):
        columns = columns.double()
        exact = torch.matmul(a, columns)
        found.append(_every_cut(a, columns, exact) if every else _some_cuts(a, columns, exact))
    lost, squares = (torch.cat(parts, -1) for parts in zip(*found, strict=True))
    return lost, squares * (2.0**-46 / 12)


def _every_cut(
    a: torch.Tensor, b: torch.Tensor, exact: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accumulated one after the other; also the squared powers of two of all sums."""
    total, squares = torch.zeros_like(exact), torch.zeros_like(exact)
    step = BLOCK * max(1, _ROOM // max(1, exact.numel()))
    for start in range(0, a.shape[-1], step):
        part = slice(start, start + step)
        products = torch.matmul(*_blocks(a[..., part], b[..., part, :], BLOCK))
        sums = _cut_sums(total, products)
        squares += _powers(sums).square_().sum(0)
    return exact - total, squares


def _some_cuts(
    a: torch.Tensor, b: torch.Tensor, exact: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """An accelerator would wait for the host at each cut, and has to move the sums of all blocks
    through its memory: there one block of a group, in its middle, is added to the exact sum before
    it, which has other last places but as many to lose; it is used for the others, too."""
    total, squares, lost = (torch.zeros_like(exact) for _ in range(3))
    blocks = -(-a.shape[-1] // BLOCK)
    length = max(_GROUP, blocks // _LOOKS)
    group, front = BLOCK * length, BLOCK * (length // 2)
    a = torch.nn.functional.pad(a, (front, 0))
    b = torch.nn.functional.pad(b, (0, 0, front, 0))
    looked_at, squared = -1, 0  # the first one is in front of all terms
    step = group * max(1, _ROOM_ON_DEVICE // max(1, exact.numel()))
    for start in range(0, a.shape[-1], step):
        part = slice(start, start + step)
        left, right = _blocks(a[..., part], b[..., part, :], group)
        behind = exact.new_empty(1 + len(left), *exact.shape)
        behind[0] = total
        torch.bmm(_flat(left), _flat(right), out=_flat(behind[1:]))
        total = behind.cumsum_(0)[-1].clone()
        sums = _cut(behind[:-1])  # in place, here and below: each of them is a gigabyte
        _flat(sums).baddbmm_(_flat(left[..., :BLOCK]), _flat(right[..., :BLOCK, :]))
        uncut = sums.sum(0)
        lost += uncut - _cut(sums).sum(0)
        looked_at += len(sums)
        few = len(sums) < _MANY
        sums = sums if few else sums[2::3]
        squares += torch.linalg.vector_norm(_powers(sums), dim=0).square_()
        squared += len(sums) - (few and start == 0)
    return lost * (blocks / looked_at), squares * (blocks / squared)


def _cut_sums(total: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """The sums before each cut, one after the other; `total` is the last one behind its cut."""
    sums = torch.empty_like(products)
    for product, added in zip(products, sums, strict=True):
        torch.add(total, product, out=added)
        torch.bitwise_and(added.view(torch.int64), _KEPT, out=total.view(torch.int64))
    return sums


def _cut(sums: torch.Tensor) -> torch.Tensor:
    """Toward zero to float32, in its place."""
    return sums.view(torch.int64).bitwise_and_(_KEPT).view(torch.float64)


def _powers(sums: torch.Tensor) -> torch.Tensor:
    """Of each the power of two below it, in its place."""
    return sums.view(torch.int64).bitwise_and_(_POWER).view(torch.float64)


def _blocks(a: torch.Tensor, b: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[blocks, ..., rows, length] and [blocks, ..., length, columns], zeros behind the last
    terms."""
    missing = -a.shape[-1] % length
    if missing:
        a = torch.nn.functional.pad(a, (0, missing))
        b = torch.nn.functional.pad(b, (0, 0, 0, missing))
    count = a.shape[-1] // length
    a = a.unflatten(-1, (count, length)).movedim(-2, 0)
    return a, b.unflatten(-2, (count, length)).movedim(-3, 0)


def _flat(t: torch.Tensor) -> torch.Tensor:
    """[..., rows, columns] as [matrices, rows, columns]."""
    return t.flatten(0, -3)
