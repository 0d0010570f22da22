"""Rotary embeddings, tables of embeddings, writes to a cache."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from .rows import Kernel, Problem, Tensor, Values, wide, zeroed


def rotary_like(x: Tensor, angles: Tensor) -> Tensor:
    a, b = wide(x).chunk(2, -1)
    cos, sin = wide(angles).cos(), wide(angles).sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def by_complex(x: Tensor, angles: Tensor) -> Tensor:
    a, b = wide(x).chunk(2, -1)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(wide(angles)), wide(angles))
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


def _rotary_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        """Heads, tokens, dimensions; angles are those of positions 0 to 8."""
        rates = 10000.0 ** (-torch.arange(16, device=v.device) / 16)
        return v(3, 9, 32), (torch.arange(9, device=v.device)[:, None] * rates).to(torch.float32)

    problem = Problem("rotary", rotary_like, operands)
    like = rotary_like
    yield from problem.wrong(
        ("index", "neighbours are pairs", lambda x, t: torch.stack(like(torch.cat(
            [x[..., ::2], x[..., 1::2]], -1), t).chunk(2, -1), -1).flatten(-2)),
        ("index", "neighbours in, halves out", lambda x, t: like(torch.cat(
            [x[..., ::2], x[..., 1::2]], -1), t), "huggingface/candle#2891"),
        ("formula", "turned the other way", lambda x, t: like(x, -t)),
        ("index", "positions from 1", lambda x, t: like(x, t + t[1])),
        ("stale", "positions begin again at 4", lambda x, t: like(x, torch.cat([t[:4], t[:5]])),
         "vllm-project/vllm-metal#144"),
        ("tail", "last pair not turned", lambda x, t: like(x, zeroed(t, ..., -1)), "", "f32"),
        ("index", "halves exchanged", lambda x, t: like(x, t).roll(16, -1)),
        ("left out", "not turned from position 8 on", lambda x, t: like(x, zeroed(t, 8))),
        ("constant", "theta of 500000", lambda x, t: like(x, t * _slower(t)),
         "lyogavin/airllm#368"),
        ("left out", "first half of the dimensions alone", lambda x, t: like(
            x, zeroed(t, ..., slice(8, None))), "apache/tvm#18520"),
        ("scale", "angles halved", lambda x, t: like(x, t / 2), "ml-explore/mlx-lm#1545"),
        ("scale", "result times 1.1", lambda x, t: (wide(like(x, t)) * 1.1).to(x.dtype),
         "apple/coreai-models#246"),
        ("precision", "angles in bfloat16", lambda x, t: like(x, t.bfloat16().float()),
         "Xilinx/mlir-air#1610", "f32"),
        ("precision", "table in bfloat16", lambda x, t: _by_table(
            x, t.cos().bfloat16(), t.sin().bfloat16()), "huggingface/candle#3698", "f32"),
        ("approximation", "cosine by four terms of its series", lambda x, t: _by_table(
            x, 1 - t**2 / 2 + t**4 / 24 - t**6 / 720, t.sin()), "lablup/mlxcel#1055"),
        ("index", "heads for tokens", lambda x, t: like(
            x.transpose(0, 1).reshape(3, 9, 32), t).reshape(9, 3, 32).transpose(0, 1)),
        ("stale", "second half made of the turned first", lambda x, t: _in_place(x, t),
         "ml-explore/mlx#3494"),
    )  # fmt: skip
    yield from problem.right(
        ("complex numbers", by_complex),
        ("a product of 2 x 2 matrices", lambda x, t: torch.stack([
            wide(x).unflatten(-1, (2, 16)).mul(torch.stack([t.cos(), -t.sin()], -2)).sum(-2),
            wide(x).unflatten(-1, (2, 16)).mul(torch.stack([t.sin(), t.cos()], -2)).sum(-2)],
            -2).flatten(-2).to(x.dtype)),
        ("halves by rotation", lambda x, t: (
            wide(x) * torch.cat([t, t], -1).cos()
            + torch.cat([-wide(x)[..., 16:], wide(x)[..., :16]], -1) * torch.cat([t, t], -1).sin()
        ).to(x.dtype)),
    )  # fmt: skip


def _slower(angles: Tensor) -> Tensor:
    return 50.0 ** (-torch.arange(16, device=angles.device) / 16)


def _by_table(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = wide(x).chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def _in_place(x: Tensor, angles: Tensor) -> Tensor:
    a, b = wide(x).chunk(2, -1)
    first = a * angles.cos() - b * angles.sin()
    return torch.cat([first, b * angles.cos() + first * angles.sin()], -1).to(x.dtype)


def _table_rows() -> Iterator[Kernel]:
    def like(ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(ids, table) * math.sqrt(24)

    problem = Problem("scaled embedding", like, lambda v: (v.below(40, 3, 7), v(40, 24)))
    yield from problem.wrong(
        ("left out", "no scale", lambda i, t: F.embedding(i, t)),
        ("index", "next id", lambda i, t: like((i + 1) % 40, t)),
        ("mask", "id 0 is padding", lambda i, t: like(i, zeroed(t, 0)) * (i > 2)[..., None]),
        ("index", "ids of at most 31", lambda i, t: like(i.clamp(max=31), t)),
        ("index", "batch and tokens exchanged", lambda i, t: like(i.T.reshape(3, 7), t)),
        ("scale", "root of the vocabulary", lambda i, t: F.embedding(i, t) * math.sqrt(40)),
        ("precision", "scale in bfloat16", lambda i, t: F.embedding(i, t) * 4.90625, "", "f32"),
    )  # fmt: skip
    yield from problem.right(
        ("a product with one-hot rows", lambda i, t: (
            F.one_hot(i, 40).to(wide(t).dtype) @ wide(t) * math.sqrt(24)).to(t.dtype)),
        ("gathered", lambda i, t: t.index_select(0, i.flatten()).reshape(3, 7, 24) * math.sqrt(24)),
    )  # fmt: skip


def _write_rows() -> Iterator[Kernel]:
    def like(cache: Tensor, new: Tensor, slots: Tensor) -> Tensor:
        """Rows of `new` at their slots; the rest stays."""
        return cache.index_copy(0, slots, new)

    def operands(v: Values) -> tuple[Tensor, ...]:
        return v(20, 8), v(4, 8), torch.tensor([3, 17, 4, 9], device=v.device)

    problem = Problem("write to a cache", like, operands)
    yield from problem.wrong(
        ("index", "slots one late", lambda c, n, s: like(c, n, s + 1)),
        ("index", "slots in order", lambda c, n, s: like(c, n, s.sort()[0])),
        ("unwritten", "last token", lambda c, n, s: like(c, n[:3], s[:3])),
        ("formula", "added, not written", lambda c, n, s: c.index_add(0, s, n)),
        ("stale", "the rest is zero", lambda c, n, s: like(torch.zeros_like(c), n, s)),
        ("index", "the first token at all slots", lambda c, n, s: like(
            c, n[:1].expand(4, 8), s)),
        ("precision", "by way of 8 bits", lambda c, n, s: like(
            c, n.to(torch.float8_e4m3fn).to(n.dtype), s), "vllm-project/vllm#33638"),
        ("precision", "by way of float16", lambda c, n, s: like(
            c, n.half().to(n.dtype), s), "", "f32"),
    )  # fmt: skip
    yield from problem.right(
        ("scattered", lambda c, n, s: c.scatter(0, s[:, None].expand(4, 8), n)),
    )


def rows() -> Iterator[Kernel]:
    yield from _rotary_rows()
    yield from _table_rows()
    yield from _write_rows()
