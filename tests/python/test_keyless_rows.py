"""Rows of attention without a key: zeros, uniform rows and NaN are all right, and not judged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checked import normal, wrong
from torch.nn import functional

from python_inspector import check

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

Attention = Callable[..., torch.Tensor]


def padded(tokens: int = 9, pad: int = 3) -> torch.Tensor:
    """A causal mask of which the first tokens of sequence 1 may see nothing."""
    allowed = torch.ones(2, 1, tokens, tokens).tril().bool()
    allowed[1, :, :, :pad] = False
    return allowed


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


def eager(lowest: float | None) -> Attention:
    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor
    ) -> torch.Tensor:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        least = torch.finfo(q.dtype).min if lowest is None else lowest
        scores = scores + torch.zeros_like(scores).masked_fill(~allowed, least)
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v

    return attend


WAYS: dict[str, Attention] = {"fused": fused, "uniform": eager(None), "nan": eager(-torch.inf)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", ["fused", "uniform"])
@pytest.mark.parametrize("like", WAYS)
def test_any_way_is_right(like: str, kernel: str, dtype: torch.dtype) -> None:
    q, k, v = (normal(2, 2, 9, 8, dtype=dtype, seed=s) for s in (1, 2, 3))
    verdict = check(WAYS[kernel], like=WAYS[like], inputs=(q, k, v, padded()))
    assert "240 of 288 elements judged" in verdict.reason
    assert "rows without a key" in verdict.reason


@pytest.mark.parametrize("like", WAYS)
def test_the_other_rows_are_judged(like: str) -> None:
    q, k, v = (normal(2, 2, 9, 8, seed=s) for s in (1, 2, 3))

    def off_by_one(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor
    ) -> torch.Tensor:
        return fused(q, k, v, padded(pad=4))

    wrong(off_by_one, WAYS[like], (q, k, v, padded()))


def test_code_that_returns_nan_is_equal_to_itself() -> None:
    q, k, v = (normal(2, 2, 9, 8, seed=s) for s in (1, 2, 3))
    check(WAYS["nan"], like=WAYS["nan"], inputs=(q, k, v, padded()))


def test_where_every_row_has_a_key_nothing_is_left_out() -> None:
    q, k, v = (normal(2, 2, 9, 8, seed=s) for s in (1, 2, 3))
    verdict = check(eager(None), like=fused, inputs=(q, k, v, padded(pad=0)))
    assert verdict.reason == ""
