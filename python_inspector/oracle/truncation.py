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
_OPERANDS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
_KEPT = -(1 << 29)  # of a float64's bits those that float32 has, too
_POWER = 0x7FF << 52  # of a float64's bits those of the power of two below it


def applies(name: str) -> bool:
    return name in _OPERANDS


def truncated(
    name: str, operands: Operands, exact: torch.Tensor, stacked: bool, simulation: Simulation
) -> torch.Tensor:
    """The stack of results before rounding; the rounded model's is exact."""
    first, _ = operands.first_row()
    a, b = (first[i] for i in _OPERANDS[name])
    lost, variance = loss(a, b)
    out = simulation.spread_out(exact, stacked)
    out[1:] -= lost
    return simulation.perturb(out, variance.sqrt(), stacked=True)


def loss(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a @ b loses by truncation, and the variance of that if every cut fell anywhere."""
    a, b = a.double(), b.double()
    exact = torch.matmul(a, b)
    total, squares, lost = (torch.zeros_like(exact) for _ in range(3))
    on_host = _is_host(a.device)
    step = BLOCK * max(1, (_ROOM if on_host else _ROOM_ON_DEVICE) // max(1, exact.numel()))
    for start in range(0, a.shape[-1], step):
        part = slice(start, start + step)
        products = _products(a[..., part], b[..., part, :])
        if on_host:
            sums = _cut_sums(total, products)
        else:
            whole = total + products.cumsum(0)
            sums = products.add_(_kept(torch.cat([total[None], whole[:-1]])))
            lost += (sums - _kept(sums)).sum(0)
            total = whole[-1].clone()
        powers = sums.view(torch.int64).bitwise_and_(_POWER).view(torch.float64)
        squares += powers.square_().sum(0)
    return exact - total if on_host else lost, squares * (2.0**-46 / 12)


def _cut_sums(total: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """The sums before each cut, one after the other; `total` is the last one behind its cut.

    An accelerator would wait for the host at each of them: there each block is added to the exact
    sum so far, cut once, which has other last places but no others to lose.
    """
    sums = torch.empty_like(products)
    for product, added in zip(products, sums, strict=True):
        torch.add(total, product, out=added)
        torch.bitwise_and(added.view(torch.int64), _KEPT, out=total.view(torch.int64))
    return sums


def _is_host(device: torch.device) -> bool:
    return device.type == "cpu"


def _kept(sums: torch.Tensor) -> torch.Tensor:
    return (sums.view(torch.int64) & _KEPT).view(torch.float64)


def _products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[blocks, ..., rows, columns]: of each block of the terms its products' sum."""
    missing = -a.shape[-1] % BLOCK
    if missing:
        a = torch.nn.functional.pad(a, (0, missing))
        b = torch.nn.functional.pad(b, (0, 0, 0, missing))
    blocks = a.shape[-1] // BLOCK
    a = a.unflatten(-1, (blocks, BLOCK)).movedim(-2, 0)
    return torch.matmul(a, b.unflatten(-2, (blocks, BLOCK)).movedim(-3, 0))
