"""torch's fused attention as one operation: rounded once, at its output.

Its weights stay in float32 (but see `_rounds_weights`), so scores, weights and sums of each
simulated kernel are off as those of separate operations are, before one rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from python_inspector.arithmetic import FUNCTIONS, SUMS
from python_inspector.simulation import Operands, Simulation


def is_attention(name: str) -> bool:
    return name.startswith("_scaled_dot_product") and "fused_sdp_choice" not in name


def attend(
    func: OpOverload, operands: Operands, simulation: Simulation
) -> tuple[torch.Tensor, torch.Tensor]:
    """The stack of outputs, and the rounded model's log of summed exponentials."""
    given = _by_name(func, operands)
    q, k, v = (_rows(operands, given[name]) for name in ("query", "key", "value"))
    scale = given.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    simulation.check(q[0].numel() // q.shape[-1] * k.shape[-2])
    k, v = (_each_head(t, q.shape[2]) for t in (k, v))
    scores = torch.matmul(q, k.mT) * scale
    magnitudes = torch.matmul(q[0].abs(), k[0].abs().mT) * abs(scale)
    scores = simulation.spread_out(scores[0], stacked=False) if len(scores) == 1 else scores
    scores = simulation.perturb(scores, SUMS * magnitudes, stacked=True)
    scores = _masked(scores, operands, given)
    lse = torch.logsumexp(scores[0], -1)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)  # a row without a key gives zero
    weights = simulation.perturb(weights, FUNCTIONS * weights[0], stacked=True)
    out = torch.matmul(weights, v)
    return simulation.perturb(out, SUMS * torch.matmul(weights[0], v[0].abs()), stacked=True), lse


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
