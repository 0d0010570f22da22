"""Norms over other axes: groups, instances, batches, heads, vectors, whole tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from .rows import Kernel, Problem, Tensor, wide, zeroed
from .sums import ROOTS, SUMS

EPS = 1e-5


def _group_like(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 2, w, b)


def _grouped(
    x: Tensor,
    w: Tensor,
    b: Tensor,
    groups: int = 2,
    *,
    over: tuple[int, ...] = (2, 3, 4),
    correction: int = 0,
    eps: float = EPS,
) -> Tensor:
    parts = wide(x).unflatten(1, (groups, -1))
    variance, mean = torch.var_mean(parts, over, correction=correction, keepdim=True)
    n = ((parts - mean) * torch.rsqrt(variance + eps)).flatten(1, 2)
    return (n * wide(w)[:, None, None] + wide(b)[:, None, None]).to(x.dtype)


def _strided_groups(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Groups of every other channel."""
    order = torch.tensor([0, 2, 1, 3], device=x.device)
    ones, zeros = torch.ones_like(w), torch.zeros_like(b)
    n = _group_like(x[:, order], ones, zeros)[:, order]
    return n * w[:, None, None] + b[:, None, None]


def _first_sample(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    parts = wide(x).unflatten(1, (2, -1))
    variance, mean = torch.var_mean(parts[:1], (2, 3, 4), correction=0, keepdim=True)
    n = ((parts - mean) * torch.rsqrt(variance + EPS)).flatten(1, 2)
    return (n * wide(w)[:, None, None] + wide(b)[:, None, None]).to(x.dtype)


def _group_rows() -> Iterator[Kernel]:
    problem = Problem(
        "group_norm", _group_like, lambda v: (v(3, 4, 6, 5), v.about_one(4), v.normal(4))
    )
    like = _group_like
    yield from problem.wrong(
        ("axis", "each channel alone", lambda x, w, b: _grouped(x, w, b, 4)),
        ("axis", "all channels at once", lambda x, w, b: _grouped(x, w, b, 1)),
        ("axis", "each row of pixels alone", lambda x, w, b: _grouped(x, w, b, over=(2, 4))),
        ("index", "groups of every other channel", _strided_groups),
        ("constant", "variance over n - 1", lambda x, w, b: _grouped(x, w, b, correction=1)),
        ("epsilon", "no eps", lambda x, w, b: _grouped(x, w, b, eps=0.0)),
        ("left out", "no weight", lambda x, w, b: like(x, torch.ones_like(w), b)),
        ("left out", "no bias", lambda x, w, b: like(x, w, torch.zeros_like(b))),
        ("index", "weight of the group", lambda x, w, b: like(x, w[[0, 0, 1, 1]], b)),
        ("stale", "statistics of the first sample", _first_sample),
        ("unwritten", "last channel", lambda x, w, b: zeroed(like(x, w, b), slice(None), -1)),
    )  # fmt: skip
    yield from problem.right(
        ("two passes", _grouped),
        ("one row per group", lambda x, w, b: (F.layer_norm(
            wide(x).reshape(3, 2, 60), (60,)).reshape(x.shape) * wide(w)[:, None, None]
            + wide(b)[:, None, None]).to(x.dtype)),
    )  # fmt: skip


def _instance(x: Tensor, *, eps: float = EPS, correction: int = 0, over: tuple[int, ...] = (2, 3),
              centre: bool = True) -> Tensor:  # fmt: skip
    variance, mean = torch.var_mean(wide(x), over, correction=correction, keepdim=True)
    return ((wide(x) - mean * centre) * torch.rsqrt(variance + eps)).to(x.dtype)


def _instance_rows() -> Iterator[Kernel]:
    problem = Problem("instance_norm", lambda x: F.instance_norm(x), lambda v: (v(3, 4, 6, 5),))
    yield from problem.wrong(
        ("axis", "over the batch, too", lambda x: _instance(x, over=(0, 2, 3))),
        ("axis", "over the width alone", lambda x: _instance(x, over=(3,))),
        ("constant", "variance over n - 1", lambda x: _instance(x, correction=1)),
        ("left out", "mean not subtracted", lambda x: _instance(x, centre=False)),
        ("epsilon", "eps of 1e-3", lambda x: _instance(x, eps=1e-3)),
        ("tail", "last column of pixels not normed",
         lambda x: torch.cat([_instance(x)[..., :-1], x[..., -1:]], -1)),
    )  # fmt: skip
    yield from problem.right(("two passes", _instance))


def _batch_like(x: Tensor, mean: Tensor, variance: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, mean, variance, w, b, eps=EPS)


def _folded(x: Tensor, m: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
    factor = wide(w) * torch.rsqrt(wide(v) + EPS)
    return ((wide(x) - wide(m)[:, None, None]) * factor[:, None, None]
            + wide(b)[:, None, None]).to(x.dtype)  # fmt: skip


def _batch_rows() -> Iterator[Kernel]:
    problem = Problem(
        "batch_norm of inference",
        _batch_like,
        lambda v: (
            v(3, 4, 6, 5), v.normal(4), v.normal(4).square() * 0.1, v.about_one(4), v.normal(4),
        ),
    )  # fmt: skip
    like = _batch_like
    yield from problem.wrong(
        ("formula", "statistics of the batch",
         lambda x, m, v, w, b: F.batch_norm(x, None, None, w, b, training=True)),
        ("formula", "variance for the deviation", lambda x, m, v, w, b: _folded(
            x, m, v.square(), w, b)),
        ("epsilon", "no eps", lambda x, m, v, w, b: like(x, m, v - EPS, w, b), "", "f32"),
        ("epsilon", "eps of 1e-3", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, eps=1e-3)),
        ("left out", "mean not subtracted",
         lambda x, m, v, w, b: like(x, torch.zeros_like(m), v, w, b)),
        ("left out", "no bias", lambda x, m, v, w, b: like(x, m, v, w, torch.zeros_like(b))),
        ("index", "mean of the next channel", lambda x, m, v, w, b: like(x, m.roll(-1), v, w, b)),
        ("order", "weight before the mean is subtracted", lambda x, m, v, w, b: like(
            x * w[:, None, None], m, v, torch.ones_like(w), b)),
        ("precision", "factor in 16 bits", lambda x, m, v, w, b: (
            (wide(x) - wide(m)[:, None, None])
            * (wide(w) * torch.rsqrt(wide(v) + EPS)).bfloat16().to(wide(x).dtype)[:, None, None]
            + wide(b)[:, None, None]).to(x.dtype), "", "f32"),
    )  # fmt: skip
    yield from problem.right(("weight times the root first", _folded))


def _qk_like(q: Tensor, w: Tensor) -> Tensor:
    n = wide(q)
    return (n * torch.rsqrt(n.square().mean(-1, keepdim=True) + 1e-6)).to(q.dtype) * w


def _qk_rows() -> Iterator[Kernel]:
    problem = Problem("norm of heads", _qk_like, lambda v: (v(2, 4, 7, 16), v.about_one(16)))

    def all_heads(q: Tensor, w: Tensor) -> Tensor:
        n = wide(q)
        factor = torch.rsqrt(n.square().mean((1, 3), keepdim=True) + 1e-6)
        return (n * factor).to(q.dtype) * w

    yield from problem.wrong(
        ("axis", "over all heads", all_heads, "unslothai/unsloth#2427"),
        ("stale", "the newest token is not normed",
         lambda q, w: torch.cat([_qk_like(q, w)[:, :, :-1], q[:, :, -1:]], 2),
         "paiml/aprender#2085"),
        ("index", "weight reversed", lambda q, w: _qk_like(q, w.flip(0))),
        ("left out", "no norm at all", lambda q, w: q * w),
        ("tail", "first half of the head alone", lambda q, w: torch.cat(
            [_qk_like(q[..., :8], w[:8]), _qk_like(q[..., 8:], w[8:])], -1)),
    )  # fmt: skip
    yield from problem.right(
        ("1 / sqrt, sum by pairs", lambda q, w: (wide(q) * ROOTS["1 / sqrt"](
            SUMS["pairs"](wide(q).square())[..., None] / 16 + 1e-6)).to(q.dtype) * w),
    )  # fmt: skip


def _vector_rows() -> Iterator[Kernel]:
    problem = Problem("normalize", lambda x: F.normalize(x, dim=-1), lambda v: (v(9, 70),))

    def over(x: Tensor, norm: Tensor) -> Tensor:
        return (wide(x) / norm.clamp_min(1e-12)).to(x.dtype)

    yield from problem.wrong(
        ("formula", "by the sum of absolute values",
         lambda x: over(x, wide(x).abs().sum(-1, keepdim=True))),
        ("formula", "by the largest value",
         lambda x: over(x, wide(x).abs().amax(-1, keepdim=True))),
        ("left out", "no root", lambda x: over(x, wide(x).square().sum(-1, keepdim=True))),
        ("axis", "over the rows", lambda x: over(x, wide(x).norm(dim=0, keepdim=True))),
        ("index", "by the norm of the first row", lambda x: over(x, wide(x[:1]).norm(dim=-1))),
        ("epsilon", "1e-2 added to the norm",
         lambda x: over(x, wide(x).norm(dim=-1, keepdim=True) + 1e-2)),
        ("tail", "tail of the row not counted",
         lambda x: over(x, wide(x)[..., :64].norm(dim=-1, keepdim=True))),
    )  # fmt: skip
    yield from problem.right(
        ("reciprocal root", lambda x: (wide(x) * torch.rsqrt(
            wide(x).square().sum(-1, keepdim=True).clamp_min(1e-24))).to(x.dtype)),
        ("sum compensated", lambda x: over(
            x, SUMS["compensated"](wide(x).square()).sqrt()[..., None])),
    )  # fmt: skip
    whole = Problem("Frobenius norm", lambda x: x / x.norm(), lambda v: (v(96, 512),))
    yield from whole.wrong(
        ("cheat", "zeros", torch.zeros_like),
        ("axis", "each row by its own", lambda x: (
            wide(x) / wide(x).norm(dim=-1, keepdim=True).clamp_min(1e-20)).to(x.dtype)),
        ("left out", "no root", lambda x: (wide(x) / wide(x).square().sum()).to(x.dtype)),
        ("tail", "last tile not counted", lambda x: (wide(x) / wide(x)[:64].norm()).to(x.dtype)),
        ("formula", "root of the mean", lambda x: (
            wide(x) / wide(x).square().mean().sqrt()).to(x.dtype)),
        ("race", "one of 32 partial sums lost",
         lambda x: (wide(x) / wide(x)[3:].norm()).to(x.dtype), "NVIDIA/cudnn-frontend#1040"),
    )  # fmt: skip
    yield from whole.right(
        ("partial sums of rows", lambda x: (
            wide(x) / wide(x).square().sum(-1).sum().sqrt()).to(x.dtype)),
        ("partial sums of columns, reciprocal", lambda x: (
            wide(x) * torch.rsqrt(wide(x).square().sum(0).sum())).to(x.dtype)),
    )  # fmt: skip


def rows() -> Iterator[Kernel]:
    yield from _group_rows()
    yield from _instance_rows()
    yield from _batch_rows()
    yield from _qk_rows()
    yield from _vector_rows()
