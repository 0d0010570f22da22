"""What of the reference's gradients says nothing of correct kernels.

Sums over tokens that are kept in storage, as torch's layer norm and embedding have them on a CPU,
would lend their error to every kernel; zeros, where terms cancel exactly, would lend none.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch

from ..format.axes import Named
from ..taps.calls import Block
from ..trace.reruns import Reruns
from ..trace.simulation import NARROW

MOST = 1.5
"""Times the rounded model's error. Of others that is 1.0 to 1.2."""
FEW = 16
"""Elements of which fewer may all round one way."""


def without_unknown(
    block: Block, outputs: Mapping[str, Named], reruns: Reruns, gradients: Set[str]
) -> tuple[dict[str, Named], tuple[str, ...]]:
    """The outputs with 0 for gradients that are no numbers, where all outputs are, and what is said
    of these, which the block excludes. They are 0 times infinity, as of a branch that `where` does
    not take: a kernel that knows better is not wrong."""
    found, said = dict(outputs), []
    oracle = reruns.oracle or {}
    if not all(
        bool(o.isfinite().all()) for name, (o, _) in oracle.items() if name not in gradients
    ):
        return found, ()
    for name in gradients & oracle.keys() & outputs.keys():
        (r, axes), (o, _) = outputs[name], oracle[name]
        unknown = ~(o.isfinite() | r.isfinite())
        if not (count := int(unknown.sum())):
            continue
        for made in (found, oracle, reruns.repeated or {}):
            made[name] = made[name][0].masked_fill(unknown, 0), axes
        if reruns.simulated is not None:
            reruns.simulated.stacks[name].masked_fill_(unknown, 0)
        judged = block.valid[name][0] if name in block.valid else True
        block.valid[name] = ~unknown & judged, axes
        said.append(
            f"{count} of {unknown.numel()} elements of {name} of the reference are no numbers, "
            "though its outputs are: they are not judged, but have to be numbers"
        )
    return found, tuple(said)


def believed(
    outputs: Mapping[str, Named], reruns: Reruns, gradients: Set[str]
) -> tuple[dict[str, Named], tuple[str, ...]]:
    """The outputs with the rounded model in place of such gradients, and what is said of them."""
    found, doubts = dict(outputs), []
    oracle, simulated = reruns.oracle or {}, reruns.simulated
    for name, (r, axes) in outputs.items():
        if name not in gradients or simulated is None or name not in oracle:
            continue
        stack, o = simulated.stacks[name], oracle[name][0]
        if (stack.dtype, stack.shape[1:]) != (r.dtype, r.shape):
            continue
        believed = _with_sized_zeros(r, stack, o)
        if r.dtype in NARROW:
            off, of_model = (float(torch.linalg.vector_norm(t.double() - o)) for t in (r, stack[0]))
            if off > MOST * of_model:
                believed = stack[0].clone()
                doubts.append(_words(name, off, of_model))
        if believed is not r:
            found[name] = believed, axes
            if reruns.repeated is not None:
                reruns.repeated[name] = believed, axes
    return found, tuple(doubts)


def far_from_said(outputs: Mapping[str, Named], reruns: Reruns) -> tuple[str, ...]:
    """What is said of 16-bit outputs that are much farther from the oracle than its rounded model
    and all simulated kernels are: what is said of an operation may be another one. In float32 the
    judge's own limits tell."""
    said = reruns.given.registered if reruns.given is not None else set()
    oracle, simulated = reruns.oracle or {}, reruns.simulated
    if not said or simulated is None:
        return ()
    doubts = []
    for name in outputs.keys() & oracle.keys() & simulated.stacks.keys():
        (r, _), (o, _), stack = outputs[name], oracle[name], simulated.stacks[name]
        if r.dtype not in NARROW or r.numel() < FEW:
            continue
        off = float(torch.linalg.vector_norm(r.double() - o))
        of_kernels = max(float(torch.linalg.vector_norm(it.double() - o)) for it in stack)
        if off > MOST * of_kernels:
            doubts.append(
                f"golden suspect: {name} of the reference is {_times(off, of_kernels)} times as "
                f"far off as simulated kernels, at most {MOST} is believed: what is said of "
                f"{' and '.join(sorted(said))} may be wrong, or it rounds elsewhere"
            )
    return tuple(doubts)


def _times(off: float, of_model: float) -> str:
    return f"{off / of_model:.1f}" if of_model else "any number of"


def _words(name: str, off: float, of_model: float) -> str:
    return (
        f"golden suspect: {name} of the reference has {_times(off, of_model)} times the error of "
        f"its rounded model, at most {MOST} is believed: it accumulates in storage, and lends no "
        "limit"
    )


def _with_sized_zeros(r: torch.Tensor, stack: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """Where a gradient is exactly 0, and simulated kernels are not, the rounded model is as far off
    as they are, or the reference where no model is recorded: of rows that are set aside the judge
    knows no other error of correct kernels."""
    zeros = (o == 0) & (stack[0] == 0) & (r == 0)
    if bool(zeros.any()):
        zeros &= (stack[1:] != 0).any(0)
    if not bool(zeros.any()):
        return r
    sizes = stack[1:, zeros].double().square().mean(0).sqrt().to(r.dtype)
    if r.dtype not in NARROW:
        r = r.clone()
    (stack[0] if r.dtype in NARROW else r)[zeros] = sizes
    return r
