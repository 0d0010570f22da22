"""Attention over caches of int8 and fp8 codes, with a scale for each token and head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plumbline import WrongError, check

HEADS, KV_HEADS, TOKENS, KEYS, DIM = 4, 2, 3, 37, 32
Kernel = Callable[..., torch.Tensor]


def quantised(t: torch.Tensor, codes: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    most = torch.finfo(codes).max if codes.is_floating_point else 127
    scale = t.float().abs().amax(-1, keepdim=True) / most
    values = t.float() / scale
    return (values if codes.is_floating_point else values.round()).to(codes), scale


def operands(codes: torch.dtype, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(1, HEADS, TOKENS, DIM, generator=g).to(dtype)
    size = torch.exp(torch.randn(1, KV_HEADS, KEYS, 1, generator=g))  # scales that differ
    k, v = (torch.randn(1, KV_HEADS, KEYS, DIM, generator=g) * size for _ in "kv")
    return (q, *quantised(k, codes), *quantised(v, codes))


def attend(q: Any, k: Any, v: Any) -> torch.Tensor:
    """In float32, the last queries at the end of the keys."""
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
    mask = torch.ones(TOKENS, KEYS, dtype=torch.bool, device=q.device).tril(KEYS - TOKENS)
    scores = (q.float() @ k.mT / DIM**0.5).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ v).to(q.dtype)


def like(q: Any, k: Any, k_scale: Any, v: Any, v_scale: Any) -> torch.Tensor:
    return attend(q, k.float() * k_scale, v.float() * v_scale)


def scaled_at_last(q: Any, k: Any, k_scale: Any, v: Any, v_scale: Any) -> torch.Tensor:
    """Scales of keys on scores, those of values on weights."""
    repeats = HEADS // KV_HEADS
    k, k_scale, v, v_scale = (
        t.float().repeat_interleave(repeats, 1) for t in (k, k_scale, v, v_scale)
    )
    mask = torch.ones(TOKENS, KEYS, dtype=torch.bool, device=q.device).tril(KEYS - TOKENS)
    scores = (q.float() @ k.mT) * k_scale.mT / DIM**0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return ((weights * v_scale.mT) @ v).to(q.dtype)


def newest_unscaled(q: Any, k: Any, k_scale: Any, v: Any, v_scale: Any) -> torch.Tensor:
    ones = k_scale.clone()
    ones[:, :, -1] = 1
    return like(q, k, ones, v, v_scale)


WRONG: dict[str, Kernel] = {
    "keys' scale of the next token": lambda q, k, ks, v, vs: like(q, k, ks.roll(1, 2), v, vs),
    "keys' scale of the other head": lambda q, k, ks, v, vs: like(q, k, ks.roll(1, 1), v, vs),
    "values' scale of the next token": lambda q, k, ks, v, vs: like(q, k, ks, v, vs.roll(1, 2)),
    "values' scale of the other head": lambda q, k, ks, v, vs: like(q, k, ks, v, vs.roll(1, 1)),
    "scales exchanged": lambda q, k, ks, v, vs: like(q, k, vs, v, ks),
    "the newest key unscaled": newest_unscaled,
    "the newest key left out": lambda q, k, ks, v, vs: like(
        q, torch.cat([k[:, :, :-1], k[:, :, :1]], 2), ks, v, vs
    ),
    "one scale of a head": lambda q, k, ks, v, vs: like(
        q, k, ks.mean(2, keepdim=True).expand_as(ks), v, vs
    ),
}
CODES = [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_right_ones_pass(codes: torch.dtype, dtype: torch.dtype) -> None:
    for seed in (3, 8):
        inputs = operands(codes, dtype, seed)
        for kernel in (like, scaled_at_last):
            assert check(kernel, like, inputs, explain=False).passed


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_wrong_ones_fail(codes: torch.dtype, dtype: torch.dtype, name: str) -> None:
    with pytest.raises(WrongError, match="fail"):
        check(WRONG[name], like, operands(codes, dtype, 5), explain=False)


def write(cache: Any, scales: Any, x: Any, slot: int = 3) -> None:
    """One token's codes and scale, in their slot of a cache."""
    cache[:, :, slot : slot + 1], scales[:, :, slot : slot + 1] = quantised(x, cache.dtype)


@pytest.mark.parametrize("codes", CODES, ids=str)
def test_what_is_written_to_a_cache(codes: torch.dtype) -> None:
    g = torch.Generator().manual_seed(4)
    cache = torch.zeros(1, KV_HEADS, 8, DIM).to(codes)
    x = torch.randn(1, KV_HEADS, 1, DIM, generator=g)
    inputs = (cache, torch.zeros(1, KV_HEADS, 8, 1), x)
    assert check(write, write, inputs, explain=False).passed

    def codes_first(cache: Any, scales: Any, x: Any) -> None:
        """By the scale of the slot before it was written."""
        cache[:, :, 3:4] = (x / scales[:, :, 3:4].clamp(min=1e-3)).to(cache.dtype)
        scales[:, :, 3:4] = quantised(x, cache.dtype)[1]

    for wrong in (codes_first, lambda c, s, x: write(c, s, x, 2)):
        with pytest.raises(WrongError, match="fail"):
            check(wrong, write, inputs, explain=False)
