"""torch's fused attention as one operation, as its kernels for CPU and GPU compute it.

Scores and sums stay in float32. Weights are exp(score - largest score so far), keys taken in
blocks, and where the storage is narrower than float32 they are rounded to it before they multiply
the values; the sum that divides at the end is of unrounded ones. Scores, weights and sums of each
simulated kernel are off as those of separate operations are. torch's CPU kernel is not one of them
in 16 bits: its exponential there is good to some 2^-15, which turns over a tenth of all bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from . import sequential
from .arithmetic import DRIFT, FUNCTIONS, U, of_sum
from .contracts import Inside
from .simulation import NARROW, Operands, Simulation

BLOCK = 512
"""Keys that torch's CPU kernel takes at once; a GPU's take fewer, which moves roundings of weights.
"""


def is_attention(name: str) -> bool:
    """Forward alone: gradients of it are other sums."""
    is_other = name.endswith("_backward") or "fused_sdp_choice" in name
    return name.startswith("_scaled_dot_product") and not is_other


def attend(
    func: OpOverload, operands: Operands, simulation: Simulation, inside: Inside
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacks of outputs, and of the rounded model's log of summed exponentials."""
    given = _by_name(func, operands)
    q, k, v = (_rows(operands, given[name]) for name in ("query", "key", "value"))
    scale = given.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    simulation.check(q[0].numel() // q.shape[-1] * k.shape[-2], q.device)
    k, v = (_each_head(t, q.shape[2]) for t in (k, v))
    scores = torch.matmul(q, k.mT) * scale
    magnitudes = torch.matmul(q[0].abs(), k[0].abs().mT) * abs(scale)
    scores = simulation.spread_out(scores[0], stacked=False) if len(scores) == 1 else scores
    off = of_sum(magnitudes, scores[0], q.shape[-1])
    off = off + U * scores[0].abs()  # scaling and subtracting round, too
    off = inside.of_scores(scores[0], off)
    scores = simulation.perturb(scores, off, stacked=True)
    scores = _masked(scores, operands, given)
    lse = torch.logsumexp(scores[0], -1)
    rounded, total = _weights(scores, operands.stores, simulation)
    off = DRIFT * k.shape[-2] ** 0.5 * total[0]
    alone = sequential.lost(rounded[0]).unsqueeze(-1) if simulation.samples() else None
    total = simulation.perturb(total, off, stacked=True, alone=alone)
    out = torch.matmul(rounded, v) / total
    magnitudes = torch.matmul(rounded[0], v[0].abs()) / total[0]
    out = out.nan_to_num(0.0)
    off = of_sum(magnitudes.nan_to_num(0.0), out[0], k.shape[-2])
    weights = (rounded[0] / total[0]).nan_to_num(0.0)
    off = inside.of_attention(weights, v[0], off, operands.stores)
    more = inside.of_results(out[0], operands.stores)
    return simulation.perturb(out, off, stacked=True, more=more), lse.expand(
        simulation.rows, *lse.shape
    )


def all_results(func: OpOverload, results: Sequence[Any]) -> tuple[Any, ...]:
    """`results`, and something in the place of every further one that the operation returns: a
    GPU's kernels have lengths, seeds and the like behind the output, which nothing here reads
    (attention_gradients.py). Fewer results than the schema names are read from beyond their end."""
    left = func._schema.returns[len(results) :]
    rest = [results[0].new_empty(0) if isinstance(r.type, torch.TensorType) else 0 for r in left]
    return (*results, *rest)


def _weights(
    scores: torch.Tensor, stores: torch.dtype, simulation: Simulation
) -> tuple[torch.Tensor, torch.Tensor]:
    """What multiplies the values, and its sum; both relative to the largest score of all.

    A row without a key has a sum of 0: torch gives zeros for it.
    """
    largest = scores.amax(-1, keepdim=True)
    largest = torch.where(largest.isinf(), 0.0, largest)
    narrow = stores in NARROW and not simulation.keeps(stores)
    so_far, parts, totals = None, [], []
    for block in scores.split(BLOCK, -1):
        top = block.amax(-1, keepdim=True)
        so_far = top if so_far is None else torch.maximum(so_far, top)
        base = torch.where(so_far.isinf(), 0.0, so_far)
        weights = (block - base).exp()
        weights = simulation.perturb(weights, FUNCTIONS * weights[0], stacked=True)
        scale = (base - largest).exp()
        totals.append(weights.sum(-1, keepdim=True) * scale)
        parts.append((weights.to(stores).double() if narrow else weights) * scale)
    return torch.cat(parts, -1), torch.stack(totals).sum(0)


def _by_name(func: OpOverload, operands: Operands) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, operands.args, strict=False)) | operands.kwargs


def _rows(operands: Operands, t: torch.Tensor) -> torch.Tensor:
    return t if operands.has_rows(t) else t[None]


def _each_head(t: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values [rows, batch, kv_head, ...] for every head of the queries."""
    return t.repeat_interleave(heads // t.shape[2], 2) if t.shape[2] != heads else t


def _masked(scores: torch.Tensor, operands: Operands, given: dict[str, Any]) -> torch.Tensor:
    mask = given.get("attn_mask", given.get("attn_bias"))
    if given.get("is_causal"):
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
    if mask is None:
        return scores
    mask = _rows(operands, mask)
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -torch.inf)
    return scores + mask
