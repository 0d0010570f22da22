"""The gradients of torch's fused attention as operations of their own.

Its kernels have 16-bit forms alone, and take from the forward run what no simulated one has: seeds
of a dropout that is none, lengths. Scores and the softmax are float32 here, as theirs are, and what
is multiplied is rounded to storage.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch._ops import OpOverload


@functools.cache
def gradients_of(func: OpOverload) -> Any:
    """What to call instead of a fused attention's backward; None of any other operation."""
    name = func._schema.name.partition("::")[2]
    if not name.startswith("_scaled_dot_product") or not name.endswith("_backward"):
        return None
    names = [argument.name for argument in func._schema.arguments]
    results = len(func._schema.returns)

    def made(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        return _gradients(dict(zip(names, args, strict=False)) | kwargs)[:results]

    return made


def _gradients(given: dict[str, Any]) -> tuple[torch.Tensor | None, ...]:
    """Of queries, keys, values and what is added to the scores. Rows without a key have none."""
    g = given["grad_out" if "grad_out" in given else "grad_out_"]
    q, k, v, out = (given[name] for name in ("query", "key", "value", "out"))
    scale = given.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    heads = k.shape[-3]
    k, v = (t.repeat_interleave(q.shape[-3] // heads, -3) for t in (k, v))
    bias = given.get("attn_mask", given.get("attn_bias"))
    weights = _weights(q.float() @ k.float().mT * scale, bias, bool(given.get("is_causal")))
    dv = weights.to(g.dtype).float().mT @ g.float()
    means = (g.float() * out.float()).sum(-1, keepdim=True)
    d_scores = weights * (g.float() @ v.float().mT - means)
    stored = d_scores.to(q.dtype).float()
    dq, dk = stored @ k.float() * scale, stored.mT @ q.float() * scale
    dk, dv = (t.unflatten(-3, (heads, -1)).sum(-3) for t in (dk, dv))
    wanted = given.get("grad_input_mask", [True] * 4)
    d_bias = None
    if bias is not None and wanted[3]:
        d_bias = d_scores.sum_to_size(bias.shape).to(bias.dtype)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), d_bias


def _weights(scores: torch.Tensor, bias: torch.Tensor | None, causal: bool) -> torch.Tensor:
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if bias is not None and bias.dtype == torch.bool:
        scores = scores.masked_fill(~bias, -math.inf)
    elif bias is not None:
        scores = scores + bias
    return scores.softmax(-1).nan_to_num(0.0)  # a comparison would be a choice of the reference
