# ruff: noqa: N803 -- constants have capitals in Triton
"""Kernels in Triton as its tutorials write them, right or with one fault that public reports name.

They run on the GPU that PLUMB_TEST_DEVICE names, elsewhere in Triton's interpreter, which
conftest.py asks for. Each launcher takes torch tensors on one device, returns a new one, and has a
fault where `wrong` names one of those in CASES.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

DEVICE = os.environ.get("PLUMB_TEST_DEVICE", "cpu")


@triton.jit
def _rms_norm(x, weight, out, n, eps, BLOCK: tl.constexpr, WRONG: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    v = tl.load(x + row * n + columns, mask, other=0.0).to(tl.float32)
    if WRONG == "tail":
        counted = tl.where(columns < n // 32 * 32, v, 0.0)
        factor = 1 / tl.sqrt(tl.sum(counted * counted) / n + eps)
    elif WRONG == "eps outside the root":
        factor = 1 / (tl.sqrt(tl.sum(v * v) / n) + eps)
    elif WRONG == "divided by the block":
        factor = 1 / tl.sqrt(tl.sum(v * v) / BLOCK + eps)
    elif WRONG == "squares in 16 bits":
        factor = 1 / tl.sqrt(tl.sum((v * v).to(tl.float16).to(tl.float32)) / n + eps)
    else:
        factor = 1 / tl.sqrt(tl.sum(v * v) / n + eps)
    w = tl.load(weight + columns, mask, other=0.0).to(tl.float32)
    tl.store(out + row * n + columns, (v * factor * w).to(out.dtype.element_ty), mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, wrong: str = "") -> torch.Tensor:
    out, n = torch.empty_like(x), x.shape[-1]
    _rms_norm[(x.numel() // n,)](x, weight, out, n, 1e-5, triton.next_power_of_2(n), wrong)
    return out


def rms_norm_like(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-5)


@triton.jit
def _softmax(x, out, n, BLOCK: tl.constexpr, WRONG: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    if WRONG == "padding of zeros":
        v = tl.load(x + row * n + columns, mask, other=0.0).to(tl.float32)
    else:
        v = tl.load(x + row * n + columns, mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(v) if WRONG == "no maximum" else tl.exp(v - tl.max(v))
    if WRONG == "last column":
        total = tl.sum(tl.where(columns < n - 1, e, 0.0))
    elif WRONG == "exponents in 16 bits":
        total = tl.sum(e.to(tl.float16).to(tl.float32))
    else:
        total = tl.sum(e)
    tl.store(out + row * n + columns, (e / total).to(out.dtype.element_ty), mask)


def softmax(x: torch.Tensor, wrong: str = "") -> torch.Tensor:
    out, n = torch.empty_like(x), x.shape[-1]
    _softmax[(x.numel() // n,)](x, out, n, triton.next_power_of_2(n), wrong)
    return out


def softmax_like(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


@triton.jit
def _gemm(a, b, out, m, n, k, BLOCK: tl.constexpr, WRONG: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    blocks = k // BLOCK if WRONG == "tail of k" else tl.cdiv(k, BLOCK)
    for block in range(blocks):
        inner = block * BLOCK + tl.arange(0, BLOCK)
        at = rows[:, None] * k + inner[None, :]
        x = tl.load(a + at, (rows[:, None] < m) & (inner[None, :] < k), other=0.0)
        at = inner[:, None] * n + columns[None, :]
        y = tl.load(b + at, (inner[:, None] < k) & (columns[None, :] < n), other=0.0)
        if WRONG == "operands in 16 bits":
            x, y = x.to(tl.float16).to(x.dtype), y.to(tl.float16).to(y.dtype)
        if WRONG == "last block of k alone":
            total = tl.dot(x, y, input_precision="ieee")
        else:
            total += tl.dot(x, y, input_precision="ieee")
        if WRONG == "accumulator in 16 bits":
            total = total.to(tl.float16).to(tl.float32)
    at = rows[:, None] * n + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(out + at, total.to(out.dtype.element_ty), inside)


def gemm(a: torch.Tensor, b: torch.Tensor, wrong: str = "") -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    block = 16
    _gemm[(triton.cdiv(m, block), triton.cdiv(n, block))](a, b, out, m, n, k, block, wrong)
    return out


def gemm_like(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@triton.jit
def _attention(q, k, v, out, tokens, heads, group, scale,
               DIM: tl.constexpr, BLOCK: tl.constexpr, WRONG: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1)
    kv_heads = heads // group
    kv_head = head % kv_heads if WRONG == "kv head" else head // group
    d = tl.arange(0, DIM)
    at = (head * tokens + rows[:, None]) * DIM + d[None, :]
    x = tl.load(q + at, rows[:, None] < tokens, other=0.0)
    most = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    sums = tl.zeros((BLOCK, DIM), tl.float32)
    for block in range(tl.cdiv(tokens, BLOCK)):
        keys = block * BLOCK + tl.arange(0, BLOCK)
        at = (kv_head * tokens + keys[:, None]) * DIM + d[None, :]
        y = tl.load(k + at, keys[:, None] < tokens, other=0.0)
        scores = tl.dot(x, tl.trans(y), input_precision="ieee") * scale
        if WRONG == "causal off by one":
            seen = keys[None, :] <= rows[:, None] + 1
        else:
            seen = keys[None, :] <= rows[:, None]
        scores = tl.where(seen & (keys[None, :] < tokens), scores, -1e30)
        larger = tl.maximum(most, tl.max(scores, 1))
        p = tl.exp(scores - larger[:, None])
        old = tl.exp(most - larger)
        total = tl.sum(p, 1) + (total if WRONG == "total not rescaled" else total * old)
        z = tl.load(v + at, keys[:, None] < tokens, other=0.0)
        if WRONG != "sums not rescaled":
            sums = sums * old[:, None]
        sums += tl.dot(p.to(z.dtype), z, input_precision="ieee")
        most = larger
    at = (head * tokens + rows[:, None]) * DIM + d[None, :]
    tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), rows[:, None] < tokens)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wrong: str = "") -> torch.Tensor:
    """q [1, heads, tokens, head_dim], k and v [1, kv_heads, tokens, head_dim], causal."""
    _, heads, tokens, dim = q.shape
    out, block = torch.empty_like(q), 16
    _attention[(triton.cdiv(tokens, block), heads)](
        q, k, v, out, tokens, heads, heads // k.shape[1], 1 / math.sqrt(dim), dim, block, wrong
    )
    return out


def attention_like(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )


@triton.jit
def _rotary(x, cos, sin, out, half, tokens, HALF: tl.constexpr, WRONG: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, HALF)
    mask = columns < half
    left, right = columns, columns + half
    if WRONG == "neighbours are pairs":
        left, right = 2 * columns, 2 * columns + 1
    at = (row % tokens) * half + columns
    c = tl.load(cos + at, mask, other=0.0).to(tl.float32)
    s = tl.load(sin + at, mask, other=0.0).to(tl.float32)
    if WRONG == "last dimension unrotated":
        c = tl.where(columns == half - 1, 1.0, c)
        s = tl.where(columns == half - 1, 0.0, s)
    a = tl.load(x + row * 2 * half + left, mask, other=0.0).to(tl.float32)
    b = tl.load(x + row * 2 * half + right, mask, other=0.0).to(tl.float32)
    if WRONG == "turned the other way":
        s = -s
    tl.store(out + row * 2 * half + left, (a * c - b * s).to(out.dtype.element_ty), mask)
    if WRONG == "second half of the turned first":
        a = a * c - b * s
    tl.store(out + row * 2 * half + right, (b * c + a * s).to(out.dtype.element_ty), mask)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, wrong: str = "") -> torch.Tensor:
    """x [heads, tokens, head_dim], cos and sin [tokens, head_dim / 2]; halves are pairs."""
    out, half = torch.empty_like(x), x.shape[-1] // 2
    tokens = x.shape[-2]
    rows = x.numel() // x.shape[-1]
    _rotary[(rows,)](x, cos, sin, out, half, tokens, triton.next_power_of_2(half), wrong)
    return out


def rotary_like(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.float().chunk(2, -1)
    c, s = cos.float(), sin.float()
    return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)


@dataclass(frozen=True)
class Case:
    kernel: Callable[..., torch.Tensor]
    like: Callable[..., torch.Tensor]
    inputs: Callable[[torch.dtype], tuple[torch.Tensor, ...]]
    wrong: tuple[str, ...]


def _normal(*shape: int, seed: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(dtype).to(DEVICE)


def _table(tokens: int, half: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rates = 10000.0 ** (-torch.arange(half) / half)
    angles = 500 * torch.arange(tokens)[:, None] * rates
    return angles.cos().to(dtype).to(DEVICE), angles.sin().to(dtype).to(DEVICE)


def _heads(dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(
        _normal(1, heads, 37, 16, seed=seed, dtype=dtype)
        for seed, heads in ((5, 6), (6, 3), (7, 3))
    )


CASES = {
    "rms_norm": Case(
        rms_norm, rms_norm_like,
        lambda d: (_normal(5, 3, 70, seed=1, dtype=d, scale=0.02),
                   1 + _normal(70, seed=2, dtype=d, scale=0.3)),
        ("tail", "eps outside the root", "divided by the block"),
    ),
    "softmax": Case(
        softmax, softmax_like, lambda d: (_normal(12, 70, seed=3, dtype=d, scale=3),),
        ("last column", "padding of zeros"),
    ),
    "gemm": Case(
        gemm, gemm_like,
        lambda d: (_normal(20, 200, seed=4, dtype=d), _normal(200, 24, seed=8, dtype=d)),
        ("tail of k", "accumulator in 16 bits", "last block of k alone"),
    ),
    "attention": Case(
        attention, attention_like, _heads,
        ("causal off by one", "kv head", "sums not rescaled", "total not rescaled"),
    ),
    "rotary": Case(
        rotary, rotary_like,
        lambda d: (_normal(4, 9, 32, seed=9, dtype=d), *_table(9, 16, d)),
        ("neighbours are pairs", "last dimension unrotated", "turned the other way",
         "second half of the turned first"),
    ),
}  # fmt: skip
