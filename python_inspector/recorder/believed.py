"""What of the reference's gradients says nothing of correct kernels, in 16 bits.

Sums over tokens that are kept in storage, as torch's layer norm and embedding have them on a CPU,
would lend their error to every kernel; zeros, where terms cancel exactly, would lend none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from ..format.axes import Named
from ..trace.reruns import Reruns
from ..trace.simulation import NARROW

MOST = 1.5
"""Times the rounded model's error. Of others that is 1.0 to 1.2."""


def believed(
    outputs: Mapping[str, Named], reruns: Reruns, gradients: Collection[str]
) -> tuple[dict[str, Named], tuple[str, ...]]:
    """The outputs with the rounded model in place of such gradients, and what is said of them."""
    found, doubts = dict(outputs), []
    oracle, simulated = reruns.oracle or {}, reruns.simulated
    for name, (r, axes) in outputs.items():
        if (
            name not in gradients
            or r.dtype not in NARROW
            or simulated is None
            or name not in oracle
        ):
            continue
        m, o = simulated.stacks[name][0], oracle[name][0]
        if (m.shape, m.dtype) != (r.shape, r.dtype):
            continue
        _size_zeros(simulated.stacks[name], o)
        errors = [float(torch.linalg.vector_norm(it.double() - o)) for it in (r, m)]
        if not errors[0] > MOST * errors[1]:
            continue
        found[name] = m.clone(), axes
        if reruns.repeated is not None:
            reruns.repeated[name] = found[name]
        doubts.append(
            f"golden suspect: {name} of the reference has {errors[0] / errors[1]:.1f} times the "
            f"error of its rounded model, at most {MOST} is believed: it accumulates in storage, "
            "and lends no limit"
            if errors[1]
            else f"golden suspect: {name} of the reference is not exact, its rounded model is"
        )
    return found, tuple(doubts)


def _size_zeros(stack: torch.Tensor, o: torch.Tensor) -> None:
    """Where a gradient is exactly 0, and simulated kernels are not, the rounded model is as far off
    as they are: in rows that are set aside the judge knows no other error of correct kernels."""
    zeros = (o == 0) & (stack[0] == 0)
    if bool(zeros.any()):
        sizes = stack[1:].double().square().mean(0).sqrt().to(stack.dtype)
        stack[0] = torch.where(zeros, sizes, stack[0])
