"""Causal attention over whole prompts, and by blocks of keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from .rows import Kernel, Problem, Tensor, positions, swapped, wide, zeroed


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None = None,
    *,
    border: int = 0,
    scale: float | None = None,
    cap: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """In float32 throughout; keys up to `border` after a query are seen, if `seen` is not given."""
    scores = wide(q) @ wide(k).transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    scores = scores if bias is None else scores + wide(bias)
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    if seen is None:
        seen = causal(q, k, border)
    p = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    return (p @ wide(v)).to(q.dtype)


def causal(q: Tensor, k: Tensor, border: int = 0) -> Tensor:
    return positions(k) <= positions(q)[:, None] + border


def attention_like(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~causal(q, k), -torch.inf)
    return wide(scores).softmax(-1).to(q.dtype) @ v


def three(v: Any) -> tuple[Tensor, ...]:
    return v(1, 4, 21, 16), v(1, 4, 21, 16), v(1, 4, 21, 16)


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block: int = 16,
    base2: bool = False,
    narrow: bool = False,
    rescaled: bool = True,
    total_rescaled: bool = True,
    tail_seen: bool = False,
    last_total: bool = False,
) -> Tensor:
    """By blocks of keys with a running maximum. `narrow`: weights are rounded to 16 bits."""
    power = torch.exp2 if base2 else torch.exp
    scale = q.shape[-1] ** -0.5 * (math.log2(math.e) if base2 else 1)
    most = wide(q).new_full((*q.shape[:-1], 1), -1e30)
    total, out = torch.zeros_like(most), torch.zeros_like(wide(q))
    for at in range(0, k.shape[-2], block):
        scores = wide(q) @ wide(k[..., at : at + block, :]).transpose(-1, -2) * scale
        ahead = at + positions(k[..., at : at + block, :]) > positions(q)[:, None]
        if not (tail_seen and at + block >= k.shape[-2]):
            scores = scores.masked_fill(ahead, -torch.inf)
        new = torch.maximum(most, scores.amax(-1, keepdim=True))
        p, old = power(scores - new), power(most - new)
        total = (0 if last_total else total * (old if total_rescaled else 1)) + p.sum(
            -1, keepdim=True
        )
        p = wide(p.to(v.dtype)) if narrow else p
        out = out * (old if rescaled else 1) + p @ wide(v[..., at : at + block, :])
        most = new
    return (out / total).to(q.dtype)


def _masked(q: Tensor, k: Tensor, v: Tensor, value: float, after: bool = False) -> Tensor:
    scores = wide(q) @ wide(k).transpose(-1, -2) * q.shape[-1] ** -0.5
    if after:
        return (scores.softmax(-1).masked_fill(~causal(q, k), 0) @ wide(v)).to(q.dtype)
    return (scores.masked_fill(~causal(q, k), value).softmax(-1) @ wide(v)).to(q.dtype)


def _over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = wide(q) @ wide(k).transpose(-1, -2) * q.shape[-1] ** -0.5
    p = scores.masked_fill(~causal(q, k), -torch.inf).softmax(-2)
    return (p @ wide(v)).to(q.dtype)


def _narrow_scores(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, p: bool = False) -> Tensor:
    scores = wide(q) @ wide(k).transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores if p else wide(scores.to(dtype))
    weights = scores.masked_fill(~causal(q, k), -torch.inf).softmax(-1)
    return ((weights.to(dtype).to(scores.dtype) if p else weights) @ wide(v)).to(q.dtype)


def rows() -> Iterator[Kernel]:
    problem = Problem("attention", attention_like, three)
    window = torch.ones(21, 21, dtype=torch.bool).tril().triu(-15)
    yield from problem.wrong(
        ("mask", "sees one key ahead", lambda q, k, v: attend(q, k, v, border=1)),
        ("mask", "does not see its own key", lambda q, k, v: attend(q, k, v, border=-1)),
        ("mask", "no mask", lambda q, k, v: attend(q, k, v, border=99),
         "openvinotoolkit/openvino#37653"),
        ("mask", "newest key ignored",
         lambda q, k, v: attend(q, k, v, causal(q, k) & (positions(k) < 20))),
        ("mask", "first key ignored",
         lambda q, k, v: attend(q, k, v, causal(q, k) & (positions(k) > 0))),
        ("tail", "keys beyond the last whole block dropped",
         lambda q, k, v: attend(q, k, v, causal(q, k) & (positions(k) < 16))),
        ("mask", "a window of 16", lambda q, k, v: attend(q, k, v, window.to(q.device))),
        ("mask", "what is masked has a score of 0", lambda q, k, v: _masked(q, k, v, 0.0)),
        ("mask", "what is masked has a score of -5", lambda q, k, v: _masked(q, k, v, -5.0)),
        ("order", "masked after the softmax", lambda q, k, v: _masked(q, k, v, 0.0, True)),
        ("left out", "no scale", lambda q, k, v: attend(q, k, v, scale=1.0)),
        ("scale", "1 / head_dim", lambda q, k, v: attend(q, k, v, scale=1 / 16)),
        ("scale", "of another head_dim", lambda q, k, v: attend(q, k, v, scale=18**-0.5)),
        ("formula", "a softcap of 5", lambda q, k, v: attend(q, k, v, cap=5.0)),
        ("index", "heads of k rolled", lambda q, k, v: attend(q, k.roll(1, 1), v)),
        ("index", "heads of v exchanged", lambda q, k, v: attend(q, k, swapped(v, 0, 1, 1))),
        ("index", "k and v exchanged", lambda q, k, v: attend(q, v, k)),
        ("index", "value of the token before", lambda q, k, v: attend(q, k, v.roll(1, -2))),
        ("unwritten", "one head", lambda q, k, v: zeroed(attend(q, k, v), 0, 3)),
        ("unwritten", "last token", lambda q, k, v: zeroed(attend(q, k, v), ..., -1, slice(None))),
        ("tail", "half of head_dim", lambda q, k, v: attend(
            q[..., :8], k[..., :8], v, scale=0.25)),
        ("axis", "softmax over the queries", _over_queries),
        ("stale", "sums not rescaled", lambda q, k, v: flash(q, k, v, block=5, rescaled=False)),
        ("stale", "total not rescaled",
         lambda q, k, v: flash(q, k, v, block=5, total_rescaled=False)),
        ("stale", "total of the last block",
         lambda q, k, v: flash(q, k, v, block=5, last_total=True)),
        ("tail", "no mask in the last block", lambda q, k, v: flash(q, k, v, tail_seen=True)),
        ("formula", "power of 2 without log2 e", lambda q, k, v: attend(
            q, k, v, scale=0.25 * math.log(2))),
        ("precision", "scores in bfloat16",
         lambda q, k, v: _narrow_scores(q, k, v, torch.bfloat16), "", "f32"),
        ("precision", "weights in bfloat16",
         lambda q, k, v: _narrow_scores(q, k, v, torch.bfloat16, True), "", "f32"),
        ("precision", "weights in 8 bits",
         lambda q, k, v: _narrow_scores(q, k, v, torch.float8_e4m3fn, True)),
        ("precision", "k in 8 bits", lambda q, k, v: attend(
            q, k.to(torch.float8_e4m3fn).to(k.dtype), v), "sgl-project/sglang#22671"),
        ("approximation", "exp by a Schraudolph table", lambda q, k, v: _fast_exp(q, k, v)),
    )  # fmt: skip
    for block in (1, 5, 16, 64):
        for base2 in (False, True):
            for narrow in (False, True):
                said = ", base 2" * base2 + ", weights in the dtype of v" * narrow

                def kernel(q: Tensor, k: Tensor, v: Tensor, *, b: int = block,
                           two: bool = base2, n: bool = narrow) -> Tensor:  # fmt: skip
                    return flash(q, k, v, block=b, base2=two, narrow=n)

                yield from problem.right((f"blocks of {block}{said}", kernel))
    yield from problem.right(("float32 throughout", attend))


def fast_exp(x: Tensor) -> Tensor:
    """By the bits of a float, 6 % off at most."""
    y = (x.float() * (2**23 / math.log(2)) + (127 * 2**23 - 366393)).clamp(0, 2**31 - 129)
    return y.to(torch.int32).view(torch.float32).to(x.dtype)


def _fast_exp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = wide(q) @ wide(k).transpose(-1, -2) * q.shape[-1] ** -0.5
    e = fast_exp(scores - scores.amax(-1, keepdim=True)) * causal(q, k)
    return (e / e.sum(-1, keepdim=True) @ wide(v)).to(q.dtype)
