"""Fused attention in 16 bits: weights are rounded inside, so bits are not demanded."""

from __future__ import annotations

import pytest
import torch
from checked import normal, wrong
from torch.nn import functional

from python_inspector import check

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")


def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: int = 4, scale: float = 8**-0.5
) -> torch.Tensor:
    """Weights are rounded against the largest score so far."""
    scores = (q.float() @ k.float().mT) * scale
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    most = torch.full_like(scores[..., :1], -torch.inf)
    total, out = torch.zeros_like(most), torch.zeros(*q.shape[:-1], v.shape[-1])
    for start in range(0, k.shape[-2], block):
        part = scores[..., start : start + block]
        larger = torch.maximum(most, part.amax(-1, keepdim=True))
        shrink = (most - larger).exp()
        weights = (part - larger).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        rounded = weights.to(q.dtype).float()
        out = out * shrink + rounded @ v[..., start : start + block, :].float()
        most = larger
    return (out / total).to(q.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [8, 12, 16, 40])
def test_a_flash_kernel_of_few_tokens(tokens: int, dtype: torch.dtype) -> None:
    q, k, v = (normal(1, 4, tokens, 8, dtype=dtype, seed=s) for s in (1, 2, 3))

    def like(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    check(flash, like=like, inputs=(q, k, v))
    check(lambda *qkv: flash(*(t.float() for t in qkv)).to(dtype), like=like, inputs=(q, k, v))
    wrong(lambda *qkv: flash(*qkv, scale=0.36), like, (q, k, v))
