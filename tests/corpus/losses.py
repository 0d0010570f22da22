"""Losses, distances, and backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from .rows import Kernel, Problem, Tensor, Values, positions, wide, zeroed
from .sums import SUMS, sum_in_16_bits


def _cross_like(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, ignore_index=3)


def _cross_rows() -> Iterator[Kernel]:
    problem = Problem(
        "cross entropy", _cross_like, lambda v: (v(24, 12, scale=2.0), v.below(12, 24))
    )
    like = _cross_like

    def each(x: Tensor, target: Tensor) -> Tensor:
        picked = wide(x).log_softmax(-1).gather(-1, target[:, None])[:, 0]
        return -picked * (target != 3)

    yield from problem.wrong(
        ("left out", "ignored targets count", lambda x, t: F.cross_entropy(x, t)),
        ("constant", "mean over all targets", lambda x, t: (each(x, t).sum() / 24).to(x.dtype)),
        ("formula", "sum", lambda x, t: each(x, t).sum().to(x.dtype)),
        ("index", "targets of the next row", lambda x, t: like(x, t.roll(-1))),
        ("index", "next class", lambda x, t: like(x, torch.where(t == 3, 3, (t + 1) % 12))),
        ("formula", "maximum for the log-sum-exp", lambda x, t: (
            ((wide(x).amax(-1) - wide(x).gather(-1, t[:, None])[:, 0]) * (t != 3)).sum()
            / (t != 3).sum()).to(x.dtype)),
        ("formula", "smoothed by 0.3", lambda x, t: F.cross_entropy(
            x, t, ignore_index=3, label_smoothing=0.3)),
        ("formula", "of the softmax", lambda x, t: like(x.softmax(-1), t)),
        ("tail", "last 8 rows not counted", lambda x, t: like(x[:16], t[:16])),
        ("precision", "log-probabilities in bfloat16", lambda x, t: F.nll_loss(
            x.log_softmax(-1).bfloat16().to(x.dtype), t, ignore_index=3), "", "f32"),
        ("epsilon", "1e-3 in the logarithm", lambda x, t: F.nll_loss(
            (wide(x).softmax(-1) + 1e-3).log(), t, ignore_index=3).to(x.dtype)),
    )  # fmt: skip
    yield from problem.right(
        ("row by row", lambda x, t: (each(x, t).sum() / (t != 3).sum()).to(x.dtype)),
        ("log-sum-exp less the target", lambda x, t: (
            (SUMS["pairs"]((wide(x) - wide(x).amax(-1, keepdim=True)).exp()).log()
             + wide(x).amax(-1) - wide(x).gather(-1, t[:, None])[:, 0])[t != 3].mean()
        ).to(x.dtype)),
    )  # fmt: skip


def _pair(v: Values) -> tuple[Tensor, Tensor]:
    return v(12, 40), v(12, 40)


def _of(value: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: value(wide(x), wide(y)).to(x.dtype)


def _distance_rows() -> Iterator[Kernel]:
    square = Problem("mean squared error", lambda x, y: F.mse_loss(x, y), _pair)
    yield from square.wrong(
        ("formula", "absolute error", _of(F.l1_loss)),
        ("formula", "root of it", _of(lambda x, y: F.mse_loss(x, y).sqrt())),
        ("constant", "half of it", _of(lambda x, y: F.mse_loss(x, y) / 2)),
        ("constant", "mean over the rows alone", _of(lambda x, y: (x - y).square().sum() / 12)),
        ("tail", "last 8 columns not counted", _of(lambda x, y: F.mse_loss(x[:, :32], y[:, :32]))),
        ("race", "one of 12 partial sums lost", _of(
            lambda x, y: (x - y)[:-1].square().sum() / 480)),
        ("algorithm", "difference of mean squares", _of(
            lambda x, y: x.square().mean() - 2 * (x * y).mean())),
    )  # fmt: skip
    yield from square.right(
        ("rows first", _of(lambda x, y: (x - y).square().mean(-1).mean())),
        ("divided first", _of(lambda x, y: ((x - y).square() / 480).sum())),
    )
    cosine = Problem("cosine similarity", lambda x, y: F.cosine_similarity(x, y, -1), _pair)
    yield from cosine.wrong(
        ("left out", "no norms", _of(lambda x, y: (x * y).sum(-1))),
        ("left out", "norm of x alone", _of(
            lambda x, y: (x * y).sum(-1) / x.norm(dim=-1).clamp_min(1e-8))),
        ("formula", "distance", _of(lambda x, y: 1 - F.cosine_similarity(x, y, -1))),
        ("index", "of the next row", _of(lambda x, y: F.cosine_similarity(x, y.roll(-1, 0), -1))),
        ("tail", "first 32 columns", _of(
            lambda x, y: F.cosine_similarity(x[:, :32], y[:, :32], -1))),
        ("formula", "means subtracted", _of(lambda x, y: F.cosine_similarity(
            x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True), -1))),
    )  # fmt: skip
    yield from cosine.right(
        ("norms first", _of(
            lambda x, y: (F.normalize(x, dim=-1, eps=1e-8) * F.normalize(y, dim=-1, eps=1e-8))
            .sum(-1))),
    )  # fmt: skip
    binary = Problem(
        "binary cross entropy of scores",
        lambda x, y: F.binary_cross_entropy_with_logits(x, (y > 0).to(x.dtype), reduction="none"),
        lambda v: (v(12, 40, scale=4.0), v.normal(12, 40)),
    )

    def terms(x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(x, (y > 0).to(x.dtype), reduction="none")

    yield from binary.wrong(
        ("formula", "logarithm of the sigmoid", _of(lambda x, y: -torch.where(
            y > 0, x.sigmoid(), 1 - x.sigmoid()).log())),
        ("epsilon", "1e-3 in the logarithm", _of(lambda x, y: -(torch.where(
            y > 0, x.sigmoid(), 1 - x.sigmoid()) + 1e-3).log())),
        ("formula", "targets turned", _of(lambda x, y: terms(x, -y))),
        ("approximation", "hinge", _of(lambda x, y: (1 - torch.where(y > 0, x, -x)).relu())),
        ("left out", "positive targets alone", _of(lambda x, y: terms(x, y) * (y > 0))),
    )  # fmt: skip
    yield from binary.right(
        ("softplus of the signed score", _of(lambda x, y: F.softplus(torch.where(y > 0, -x, x)))),
        ("by the larger of x and 0", _of(
            lambda x, y: x.relu() - x * (y > 0) + torch.log1p((-x.abs()).exp()))),
    )  # fmt: skip
    huber = Problem("huber loss", lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.5),
                    _pair)  # fmt: skip
    yield from huber.wrong(
        ("constant", "a delta of 1", _of(lambda x, y: F.huber_loss(x, y, reduction="none"))),
        ("left out", "the linear part without its offset", _of(lambda x, y: torch.where(
            (x - y).abs() < 0.5, (x - y).square() / 2, 0.5 * (x - y).abs()))),
        ("formula", "squares alone", _of(lambda x, y: (x - y).square() / 2)),
        ("left out", "no half", _of(lambda x, y: torch.where(
            (x - y).abs() < 0.5, (x - y).square(), 0.5 * ((x - y).abs() - 0.25)))),
    )  # fmt: skip
    yield from huber.right(
        ("by the smaller of both", _of(lambda x, y: (x - y).abs().clamp(max=0.5) * (
            (x - y).abs() - 0.5 * (x - y).abs().clamp(max=0.5)))),
    )  # fmt: skip


def _norm_gradients(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Of an RMSNorm, by its formula; a test of check.md holds it to autograd."""
    r = torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + 1e-6)
    n, gw = wide(x) * r, wide(g) * wide(w)
    dx = r * (gw - n * (gw * n).mean(-1, keepdim=True))
    return dx.to(x.dtype), (wide(g) * n).sum(0).to(x.dtype)


def _backward_rows() -> Iterator[Kernel]:
    norm = Problem(
        "gradients of rms_norm", _norm_gradients, lambda v: (v(9, 70), v.about_one(70), v(9, 70)),
        kinds=("normal", "sparse"),
    )  # fmt: skip

    def parts(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r = torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + 1e-6)
        return r, wide(x) * r, wide(g) * wide(w)

    def other(change: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
        def kernel(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
            return change(*parts(x, w, g)).to(x.dtype), _norm_gradients(x, w, g)[1]

        return kernel

    def weights(change: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
        def kernel(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
            n = parts(x, w, g)[1]
            return _norm_gradients(x, w, g)[0], change(wide(g), n, wide(x)).to(x.dtype)

        return kernel

    yield from norm.wrong(
        ("left out", "factor taken as a constant", other(lambda r, n, gw: r * gw)),
        ("constant", "sum for the mean", other(
            lambda r, n, gw: r * (gw - n * (gw * n).sum(-1, keepdim=True)))),
        ("left out", "no weight in the gradient", lambda x, w, g: (
            _norm_gradients(x, torch.ones_like(w), g)[0], _norm_gradients(x, w, g)[1])),
        ("formula", "sign of the second term", other(
            lambda r, n, gw: r * (gw + n * (gw * n).mean(-1, keepdim=True)))),
        ("left out", "weight's gradient without the norm", weights(lambda g, n, x: (g * x).sum(0))),
        ("race", "one row lost in the weight's gradient",
         weights(lambda g, n, x: (g * n)[:-1].sum(0)), "NX-AI/mlstm_kernels#16"),
        ("precision", "weight's gradient summed in bfloat16", weights(
            lambda g, n, x: sum_in_16_bits((g * n).T))),
        ("index", "gradients exchanged between rows", lambda x, w, g: (
            _norm_gradients(x, w, g)[0].roll(1, 0), _norm_gradients(x, w, g)[1])),
    )  # fmt: skip
    yield from norm.right(
        ("sums by pairs", other(
            lambda r, n, gw: r * (gw - n * (SUMS["pairs"](gw * n) / 70)[:, None]))),
        ("weight's sums one by one", weights(lambda g, n, x: SUMS["one by one"]((g * n).T))),
    )  # fmt: skip

    def soft_like(y: Tensor, g: Tensor) -> Tensor:
        p = wide(y).softmax(-1)
        return (p * (wide(g) - (p * wide(g)).sum(-1, keepdim=True))).to(y.dtype)

    soft = Problem("gradient of softmax", soft_like, lambda v: (v(9, 70), v.normal(9, 70)),
                   kinds=("normal", "small", "sparse"))  # fmt: skip
    yield from soft.wrong(
        ("left out", "no sum", lambda y, g: (wide(y).softmax(-1) * wide(g)).to(y.dtype)),
        ("formula", "p (1 - p)", lambda y, g: (
            wide(y).softmax(-1) * (1 - wide(y).softmax(-1)) * wide(g)).to(y.dtype)),
        ("left out", "mean of g for the sum", lambda y, g: (
            wide(y).softmax(-1) * (wide(g) - wide(g).mean(-1, keepdim=True))).to(y.dtype)),
        ("tail", "tail not in the sum", lambda y, g: (wide(y).softmax(-1) * (
            wide(g) - (wide(y).softmax(-1) * wide(g))[:, :64].sum(-1, keepdim=True))).to(y.dtype)),
        ("axis", "sum over the rows", lambda y, g: (wide(y).softmax(-1) * (
            wide(g) - (wide(y).softmax(-1) * wide(g)).sum(0))).to(y.dtype)),
    )  # fmt: skip
    yield from soft.right(
        ("products first", lambda y, g: (wide(y).softmax(-1) * wide(g) - wide(y).softmax(-1)
            * SUMS["pairs"](wide(y).softmax(-1) * wide(g))[:, None]).to(y.dtype)),
    )  # fmt: skip


def _scan_like(x: Tensor, decay: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """A state space of 4 per channel: h = a h + b x, y = c h + d x."""
    state, out = torch.zeros_like(wide(x)[0, :, None] * wide(b)[0]), []
    for t in range(len(x)):
        a = torch.sigmoid(wide(decay)[t])[:, None]
        state = a * state + wide(x)[t, :, None] * wide(b)[t]
        out.append((state * wide(c)[t]).sum(-1) + wide(d) * wide(x)[t])
    return torch.stack(out).to(x.dtype)


def _scan(x: Tensor, decay: Tensor, b: Tensor, c: Tensor, d: Tensor, *, reset: int = 0,
          rounded: Callable[[Tensor], Tensor] = wide, late: bool = False,
          squash: Callable[[Tensor], Tensor] = torch.sigmoid) -> Tensor:  # fmt: skip
    state, out = torch.zeros_like(wide(x)[0, :, None] * wide(b)[0]), []
    for t in range(len(x)):
        if reset and t % reset == 0:
            state = torch.zeros_like(state)
        y = (state * wide(c)[t]).sum(-1)
        new = squash(wide(decay)[t])[:, None] * state + wide(x)[t, :, None] * wide(b)[t]
        state = rounded(new)
        out.append((y if late else (state * wide(c)[t]).sum(-1)) + wide(d) * wide(x)[t])
    return torch.stack(out).to(x.dtype)


def _scan_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        return v(24, 6), v.normal(24, 6) + 2, v.normal(24, 4), v.normal(24, 4), v.normal(6)

    problem = Problem("scan of a state space", _scan_like, operands, kinds=("normal", "sparse"))
    like = _scan_like
    yield from problem.wrong(
        ("precision", "state in bfloat16", lambda *a: _scan(
            *a, rounded=lambda s: s.bfloat16().to(s.dtype))),
        ("stale", "state not carried from chunk to chunk", lambda *a: _scan(*a, reset=8),
         "huggingface/transformers#46741"),
        ("order", "output before the update", lambda *a: _scan(*a, late=True)),
        ("left out", "no d x", lambda x, a, b, c, d: like(x, a, b, c, torch.zeros_like(d))),
        ("index", "decay of the next token", lambda x, a, b, c, d: like(
            x, a.roll(-1, 0), b, c, d)),
        ("formula", "decay of exp for sigmoid", lambda *a: _scan(
            *a, squash=lambda t: (-(-t).exp()).exp())),
        ("index", "b and c exchanged", lambda x, a, b, c, d: like(x, a, c, b, d)),
        ("index", "decay of the first channel for all", lambda x, a, b, c, d: like(
            x, a[:, :1].expand(24, 6), b, c, d)),
        ("tail", "tokens after 16 have the state of 16", lambda x, a, b, c, d: torch.cat([
            like(x, a, b, c, d)[:16], like(zeroed(x, slice(16, None)), a, b, c, d)[16:]]),
         "vllm-project/vllm#55178"),
    )  # fmt: skip
    yield from problem.right(
        ("one state after the other", _scan),
        ("by chunks of 6", lambda x, a, b, c, d: _chunked(x, a, b, c, d)),
    )


def _chunked(x: Tensor, decay: Tensor, b: Tensor, c: Tensor, d: Tensor, size: int = 6) -> Tensor:
    """Within a chunk by a matrix of decays, from chunk to chunk by the state."""
    logs = F.logsigmoid(wide(decay))
    state, out = torch.zeros_like(wide(x)[0, :, None] * wide(b)[0]), []
    for at in range(0, len(x), size):
        own = slice(at, at + size)
        sums = logs[own].cumsum(0)
        weights = (sums[:, None] - sums[None]).exp()
        t = positions(sums, 0)
        weights = weights * (t[:, None] >= t)[..., None]
        scores = wide(c)[own] @ wide(b)[own].T
        y = torch.einsum("ts,tsc,sc->tc", scores, weights, wide(x)[own])
        y = y + torch.einsum("tc,cn,tn->tc", sums.exp(), state, wide(c)[own])
        out.append(y + wide(d) * wide(x)[own])
        left = (sums[-1] - sums).exp() * wide(x)[own]
        state = sums[-1].exp()[:, None] * state + torch.einsum("sc,sn->cn", left, wide(b)[own])
    return torch.cat(out).to(x.dtype)


def rows() -> Iterator[Kernel]:
    yield from _cross_rows()
    yield from _distance_rows()
    yield from _backward_rows()
    yield from _scan_rows()
