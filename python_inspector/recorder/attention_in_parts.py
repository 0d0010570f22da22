"""torch's attention as operations of their own, so that its backward is seen.

Scores and the softmax are float32, as fused kernels have them, and what multiplies the values is
rounded to storage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

_NAME = "scaled_dot_product_attention"


@contextmanager
def attention_in_parts() -> Iterator[None]:
    """Code inside that calls torch's attention calls this one. What has it under another name gets
    torch's own parts, which keep everything in float32."""
    fused = getattr(functional, _NAME)

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("dropout_p") or (len(args) > 4 and args[4]):
            result: torch.Tensor = fused(*args, **kwargs)
            return result
        return _attention(*args, **kwargs)

    setattr(functional, _NAME, attention)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        setattr(functional, _NAME, fused)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Rows of a bool mask without a key are zeros."""
    if enable_gqa and query.ndim > 2:
        key, value = (_each_head(t, query.shape[-3]) for t in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query.float() @ key.float().mT * scale
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if attn_mask is None:
        return scores.softmax(-1).to(value.dtype) @ value
    if attn_mask.dtype != torch.bool:
        return (scores + attn_mask).softmax(-1).to(value.dtype) @ value
    empty = ~attn_mask.any(-1, keepdim=True)
    weights = scores.masked_fill(~(attn_mask | empty), -math.inf).softmax(-1)
    return weights.masked_fill(empty, 0.0).to(value.dtype) @ value


def _each_head(t: torch.Tensor, heads: int) -> torch.Tensor:
    return t.repeat_interleave(heads // t.shape[-3], -3)
