"""Products that accumulate as tensor cores do: blocks of 16 exact products, then truncation.

The sum so far is float32; adding a block to it cuts the result off toward zero. The rounded model's
products are accumulated so, in the order of their terms. Where a cut falls within the last place is
chance: each simulated kernel is also off by as much as that chance varies.
"""

from __future__ import annotations

import torch

from python_inspector.oracle.simulation import Operands, Simulation

BLOCK = 16
LEAST_TERMS = 1024
"""Sums shorter than this lose less than other orders do: they are not simulated."""
_ROOM = 1 << 16
"""Elements of the blocks' sums that are made at once, on a CPU."""
_ROOM_ON_DEVICE = 1 << 27
_GROUP = 4
"""Blocks of which an accelerator looks at one."""
_OPERANDS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
_KEPT = -(1 << 29)  # of a float64's bits those that float32 has, too
_POWER = 0x7FF << 52  # of a float64's bits those of the power of two below it


def applies(name: str) -> bool:
    return name in _OPERANDS


def truncated(
    name: str, operands: Operands, exact: torch.Tensor, stacked: bool, simulation: Simulation
) -> torch.Tensor:
    """The stack of results before rounding, off in the rows of kernels that truncate."""
    first, _ = operands.first_row()
    a, b = (first[i] for i in _OPERANDS[name])
    lost, variance = loss(a, b)
    out = simulation.spread_out(exact, stacked)
    (cutting,) = simulation.samples(truncating=True)
    out[cutting.rows].sub_(lost)
    return simulation.perturb(out, variance.sqrt(), stacked=True, of=[cutting])


def loss(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a @ b loses by truncation, and the variance of that if every cut fell anywhere."""
    a, b = a.double(), b.double()
    exact = torch.matmul(a, b)
    lost, squares = _every_cut(a, b, exact) if _is_host(a.device) else _some_cuts(a, b, exact)
    return lost, squares * (2.0**-46 / 12)


def _every_cut(
    a: torch.Tensor, b: torch.Tensor, exact: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accumulated one after the other; also the squared powers of two of all sums."""
    total, squares = torch.zeros_like(exact), torch.zeros_like(exact)
    step = BLOCK * max(1, _ROOM // max(1, exact.numel()))
    for start in range(0, a.shape[-1], step):
        part = slice(start, start + step)
        sums = _cut_sums(total, _products(a[..., part], b[..., part, :], BLOCK))
        squares += _powers(sums).square_().sum(0)
    return exact - total, squares


def _some_cuts(
    a: torch.Tensor, b: torch.Tensor, exact: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """An accelerator would wait for the host at each cut, and has to move the sums of all blocks
    through its memory: there one block in _GROUP, in its middle, is added to the exact sum before
    it, which has other last places but as many to lose, and stands for the others."""
    total, squares, lost = (torch.zeros_like(exact) for _ in range(3))
    blocks = -(-a.shape[-1] // BLOCK)
    group, front = BLOCK * _GROUP, BLOCK * (_GROUP // 2)
    a = torch.nn.functional.pad(a, (front, 0))
    b = torch.nn.functional.pad(b, (0, 0, front, 0))
    looked_at = -1  # the first one is in front of all terms
    step = group * max(1, _ROOM_ON_DEVICE // max(1, exact.numel()))
    for start in range(0, a.shape[-1], step):
        left, right = a[..., start : start + step], b[..., start : start + step, :]
        behind = _products(left, right, group).cumsum(0).add_(total)
        before = torch.cat([total[None], behind[:-1]])
        sums = _products(left, right, group, BLOCK).add_(_kept(before))
        total = behind[-1].clone()
        lost += (sums - _kept(sums)).sum(0)
        squares += _powers(sums).square_().sum(0)
        looked_at += len(sums)
    return lost * (blocks / looked_at), squares * (blocks / looked_at)


def _cut_sums(total: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """The sums before each cut, one after the other; `total` is the last one behind its cut."""
    sums = torch.empty_like(products)
    for product, added in zip(products, sums, strict=True):
        torch.add(total, product, out=added)
        torch.bitwise_and(added.view(torch.int64), _KEPT, out=total.view(torch.int64))
    return sums


def _is_host(device: torch.device) -> bool:
    return device.type == "cpu"


def _kept(sums: torch.Tensor) -> torch.Tensor:
    return (sums.view(torch.int64) & _KEPT).view(torch.float64)


def _powers(sums: torch.Tensor) -> torch.Tensor:
    """Of each the power of two below it, in its place."""
    return sums.view(torch.int64).bitwise_and_(_POWER).view(torch.float64)


def _products(
    a: torch.Tensor, b: torch.Tensor, length: int, first: int | None = None
) -> torch.Tensor:
    """[blocks, ..., rows, columns]: of each block of `length` terms, or its `first` ones, their
    products' sum."""
    missing = -a.shape[-1] % length
    if missing:
        a = torch.nn.functional.pad(a, (0, missing))
        b = torch.nn.functional.pad(b, (0, 0, 0, missing))
    blocks = a.shape[-1] // length
    a = a.unflatten(-1, (blocks, length)).movedim(-2, 0)[..., :first]
    return torch.matmul(a, b.unflatten(-2, (blocks, length)).movedim(-3, 0)[..., :first, :])
