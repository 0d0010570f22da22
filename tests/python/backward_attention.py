"""Attention's backward by hand: as fused kernels have it, and its faults."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from backward_tables import Dice, Function, Sizes, Table, kernel
from torch.nn import functional

Tensor = torch.Tensor


@dataclass(frozen=True)
class Form:
    """Of the attention: a softcap and a window, or none."""

    cap: float | None = None
    window: int | None = None


def _allowed(q: Tensor, window: int | None) -> Tensor:
    tokens = q.shape[2]
    at = torch.arange(tokens, device=q.device)
    behind = at[:, None] - at
    return (behind >= 0) & (behind < (window or tokens))


def attention(q: Tensor, k: Tensor, v: Tensor, form: Form) -> Tensor:
    """As transformers' eager code has it."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if form.cap is not None:
        scores = (scores / form.cap).tanh() * form.cap
    scores = scores.masked_fill(~_allowed(q, form.window), -math.inf)
    return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


@dataclass(frozen=True)
class Way:
    """How a backward is written, right ways and wrong ones."""

    storage: bool = True
    """Weights and their gradients are rounded to it before they multiply."""
    eager_sum: bool = False
    """The sum of a row is that of weights, not of outputs."""
    group: str = "sum"
    delta: bool = True
    delta_of: int = 0
    """The head whose sum is taken, relative to the right one."""
    cap_slope: bool = True
    cap_twice: bool = False
    masks: bool = True
    shorter: int = 0
    """Than the forward's window."""
    scales: str = "qk"
    keys: int | None = None
    """Of the first this many queries the gradient of values is made."""


def _fused(q: Tensor, k: Tensor, v: Tensor, form: Form, way: Way) -> Tensor:
    """Scores in float32, weights in storage, as fused kernels have them."""
    groups = q.shape[1] // k.shape[1]
    qw, kw, vw = (t.float() for t in (q, k.repeat_interleave(groups, 1), v))
    scores = qw @ kw.mT * q.shape[-1] ** -0.5
    if form.cap is not None:
        scores = (scores / form.cap).tanh() * form.cap
    p = scores.masked_fill(~_allowed(q, form.window), -math.inf).softmax(-1)
    p = p.to(q.dtype).float() if way.storage else p
    return (p @ vw.repeat_interleave(groups, 1)).to(q.dtype)


def _backward(xs: Sequence[Tensor], g: Tensor, form: Form, way: Way) -> Sequence[Tensor]:
    q, k, v = xs
    heads, groups, dtype = k.shape[1], q.shape[1] // k.shape[1], q.dtype
    out = _fused(q, k, v, form, way)
    qw, kw, vw = (t.float() for t in (q, k, v))
    kw, vw, g = kw.repeat_interleave(groups, 1), vw.repeat_interleave(groups, 1), g.float()
    scale = q.shape[-1] ** -0.5
    scores = qw @ kw.mT * scale
    capped = (scores / form.cap).tanh() if form.cap is not None else scores
    allowed = _allowed(q, form.window)
    masked = (capped * (form.cap or 1.0)).masked_fill(~allowed, -math.inf)
    p = masked.softmax(-1)
    if not way.masks or way.shorter:
        p = (capped * (form.cap or 1.0) - masked.logsumexp(-1, keepdim=True)).exp()
    if way.shorter:
        p = p * _allowed(q, (form.window or 0) - way.shorter)
    stored = (lambda t: t.to(dtype).float()) if way.storage else (lambda t: t)
    dv = stored(p).mT[..., : way.keys] @ g[..., : way.keys, :]
    dp = g @ vw.mT
    delta = (p * dp).sum(-1, keepdim=True) if way.eager_sum else (g * out.float()).sum(-1, True)
    ds = p * (dp - delta.roll(way.delta_of, 1) * way.delta)
    if form.cap is not None:
        ds = ds * (1 - capped.square()) if way.cap_slope else ds
        ds = ds / form.cap if way.cap_twice else ds
    ds = stored(ds)
    dq = ds @ kw * (scale if "q" in way.scales else 1.0)
    dk = ds.mT @ qw * (scale if "k" in way.scales else 1.0)
    return dq, *(_grouped(t, heads, way.group, dtype) for t in (dk, dv))


def _grouped(t: Tensor, heads: int, how: str, dtype: torch.dtype) -> Tensor:
    parts = t.unflatten(1, (heads, -1))
    if how == "first":
        return parts[:, :, 0]
    if how == "mean":
        return parts.mean(2)
    return parts.to(dtype).sum(2) if how == "storage" else parts.sum(2)


def table(sizes: Sizes, dtype: torch.dtype, form: Form) -> Table:
    dice = Dice(sizes, dtype)
    q, k, v = (
        dice(2, heads, sizes.tokens, sizes.head_dim)
        for heads in (sizes.heads, sizes.heads // 2, sizes.heads // 2)
    )
    like = functools.partial(attention, form=form)

    def of(**options: Any) -> Function:
        way = Way(**options)
        parts = (functools.partial(it, form=form, way=way) for it in (_fused, _backward))
        return kernel(*parts)

    right = {
        "flash": of(),
        "flash, float32 inside": of(storage=False),
        "flash, heads added in storage": of(group="storage"),
        "recomputed, sum of weights": of(storage=False, eager_sum=True),
        "eager": like,
        "float32 inside": lambda q, k, v: like(q.float(), k.float(), v.float()).to(q.dtype),
    }
    wrong = {
        "no delta": of(delta=False),
        "delta of another head": of(delta_of=1),
        "no mask in backward": of(masks=False),
        "no scale in dq": of(scales="k"),
        "no scale in dk": of(scales="q"),
        "first head of a group": of(group="first"),
        "mean of a group": of(group="mean"),
        "dv without the last query": of(keys=-1),
    }
    if form.cap is not None:
        wrong |= {
            "softcap's slope is missing": of(cap_slope=False),
            "softcap's 1/cap twice": of(cap_twice=True),
        }
    if form.window is not None:
        wrong["window one shorter in backward"] = of(shorter=1)
        wrong["window two longer in backward"] = of(shorter=-2)
    else:
        if form.cap is None:
            right["torch"] = lambda q, k, v: functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True
            )
    return Table(like, (q, k, v), right, wrong)
