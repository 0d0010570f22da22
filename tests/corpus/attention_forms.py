"""Attention with fewer kv heads, windows, softcaps, sinks, biases, padding, log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from .attention import attend, attention_like, causal, three
from .rows import Kernel, Problem, Tensor, Values, positions, wide, zeroed


def _grouped_like(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention_like(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))


def _by_heads(*order: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda q, k, v: attend(q, k[:, order], v[:, order])


def _grouped_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        return v(1, 6, 21, 16), v(1, 3, 21, 16), v(1, 3, 21, 16)

    problem = Problem("grouped attention", _grouped_like, operands)
    yield from problem.wrong(
        ("index", "kv heads interleaved", _by_heads(0, 1, 2, 0, 1, 2)),
        ("index", "first kv head for all", _by_heads(0, 0, 0, 0, 0, 0)),
        ("index", "groups begin one head late", _by_heads(0, 0, 0, 1, 1, 2)),
        ("constant", "groups of four", _by_heads(0, 0, 0, 0, 1, 1)),
        ("index", "v of the next kv head", lambda q, k, v: _grouped_like(q, k, v.roll(-1, 1))),
        ("unwritten", "second head of each group", lambda q, k, v: zeroed(
            _grouped_like(q, k, v), 0, slice(1, None, 2))),
    )  # fmt: skip
    yield from problem.right(
        ("queries of a group at once", lambda q, k, v: attend(
            q.unflatten(1, (3, 2)), k[:, :, None], v[:, :, None]).flatten(1, 2)),
        ("heads gathered", _by_heads(0, 0, 1, 1, 2, 2)),
    )  # fmt: skip


def _window(q: Tensor, k: Tensor, newest: int = 0, oldest: int = 7) -> Tensor:
    distance = positions(q)[:, None] - positions(k)
    return (distance >= newest) & (distance <= oldest)


def _window_like(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, _window(q, k))


def _windows() -> Iterator[Kernel]:
    problem = Problem("attention in a window of 8", _window_like, three)
    yield from problem.wrong(
        ("mask", "one longer", lambda q, k, v: attend(q, k, v, _window(q, k, 0, 8)),
         "microsoft/onnxruntime#25927"),
        ("mask", "one shorter", lambda q, k, v: attend(q, k, v, _window(q, k, 0, 6)),
         "NVIDIA/TensorRT-LLM#5564"),
        ("mask", "no window", attend, "huggingface/candle#3698"),
        ("mask", "to both sides", lambda q, k, v: attend(q, k, v, _window(q, k, -7, 7))),
        ("mask", "chunks of 8 for a window", lambda q, k, v: attend(
            q, k, v, causal(q, k) & (positions(q)[:, None] // 8 == positions(k) // 8)),
         "huggingface/transformers#37351"),
        ("tail", "oldest block of 4 dropped", lambda q, k, v: attend(
            q, k, v, _window(q, k) & (positions(q)[:, None] // 4 - positions(k) // 4 < 2))),
    )  # fmt: skip
    yield from problem.right(
        ("only the keys of the window", lambda q, k, v: torch.cat([
            attend(q[:, :, i : i + 1], k[:, :, max(0, i - 7) : i + 1],
                   v[:, :, max(0, i - 7) : i + 1], border=99) for i in range(21)], 2)),
    )  # fmt: skip


def _capped_like(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, cap=2.0)


def _caps() -> Iterator[Kernel]:
    problem = Problem("attention with a softcap", _capped_like, three)

    def scored(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scores = change(wide(q) @ wide(k).transpose(-1, -2))
            p = scores.masked_fill(~causal(q, k), -torch.inf).softmax(-1)
            return (p @ wide(v)).to(q.dtype)

        return kernel

    yield from problem.wrong(
        ("left out", "no softcap", attend, "sgl-project/sglang#33915"),
        ("order", "capped before the scale", scored(lambda s: 2 * torch.tanh(s / 2) / 4)),
        ("scale", "a cap twice as large", lambda q, k, v: attend(q, k, v, cap=4.0)),
        ("approximation", "clamped", scored(lambda s: (s / 4).clamp(-2, 2))),
        ("left out", "not multiplied by the cap", scored(lambda s: torch.tanh(s / 8))),
        ("approximation", "tanh by a ratio of polynomials", scored(
            lambda s: 2 * _ratio(s / 8))),
    )  # fmt: skip
    yield from problem.right(
        ("tanh by the logistic function",
         scored(lambda s: 2 * (2 * torch.sigmoid(s / 4) - 1))),
    )  # fmt: skip


def _ratio(x: Tensor) -> Tensor:
    x = x.clamp(-3, 3)
    return x * (27 + x * x) / (27 + 9 * x * x)


def _sinks_like(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    scores = (wide(q) @ wide(k).transpose(-1, -2) * 0.25).masked_fill(~causal(q, k), -torch.inf)
    sink = wide(sinks)[:, None, None].expand(*scores.shape[:-1], 1)
    p = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return (p @ wide(v)).to(q.dtype)


def _sinks_online(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    scores = (wide(q) @ wide(k).transpose(-1, -2) * 0.25).masked_fill(~causal(q, k), -torch.inf)
    sink = wide(sinks)[:, None, None]
    most = torch.maximum(scores.amax(-1, keepdim=True), sink)
    e = (scores - most).exp()
    return (e @ wide(v) / (e.sum(-1, keepdim=True) + (sink - most).exp())).to(q.dtype)


def _sinks() -> Iterator[Kernel]:
    problem = Problem("attention with sinks", _sinks_like, lambda v: (*three(v), v.normal(4)))
    like = _sinks_like
    yield from problem.wrong(
        ("left out", "no sinks", lambda q, k, v, s: attend(q, k, v), "ekryski/mlx-swift-lm#130"),
        ("index", "sink of the next head", lambda q, k, v, s: like(q, k, v, s.roll(1))),
        ("index", "sink of the first head for all", lambda q, k, v, s: like(
            q, k, v, s[:1].expand(4))),
        ("scale", "sinks scaled as scores are", lambda q, k, v, s: like(q, k, v, s / 4)),
        ("formula", "exponent of the sink without the maximum", lambda q, k, v, s: _no_maximum(
            q, k, v, s)),
        ("formula", "a sink of 0", lambda q, k, v, s: like(q, k, v, torch.zeros_like(s))),
        ("formula", "the sink has a value", lambda q, k, v, s: (
            wide(like(q, k, v, s)) + wide(attend(q, k, v) - like(q, k, v, s)) / 21).to(q.dtype)),
    )  # fmt: skip
    yield from problem.right(("sink joins the running total", _sinks_online))


def _no_maximum(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    scores = (wide(q) @ wide(k).transpose(-1, -2) * 0.25).masked_fill(~causal(q, k), -torch.inf)
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    total = e.sum(-1, keepdim=True) + wide(sinks)[:, None, None].exp()
    return (e @ wide(v) / total).to(q.dtype)


def _biased_like(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attend(q, k, v, bias=bias, border=99)


def _biases() -> Iterator[Kernel]:
    problem = Problem(
        "attention with a bias", _biased_like, lambda v: (*three(v), v.normal(4, 21, 21))
    )
    like = _biased_like
    yield from problem.wrong(
        ("left out", "no bias", lambda q, k, v, b: attend(q, k, v, border=99)),
        ("scale", "bias scaled as scores are", lambda q, k, v, b: like(q, k, v, b / 4)),
        ("index", "bias transposed", lambda q, k, v, b: like(q, k, v, b.mT)),
        ("index", "bias of the first head for all", lambda q, k, v, b: like(q, k, v, b[:1])),
        ("index", "bias of the next key", lambda q, k, v, b: like(q, k, v, b.roll(1, -1))),
        ("tail", "no bias in the last block of keys", lambda q, k, v, b: like(
            q, k, v, zeroed(b, ..., slice(16, None)))),
    )  # fmt: skip
    yield from problem.right(
        ("base 2", lambda q, k, v, b: _base_2(q, k, v, b)),
    )


def _base_2(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = (wide(q) @ wide(k).transpose(-1, -2) * 0.25 + wide(bias)) * math.log2(math.e)
    e = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return (e @ wide(v) / e.sum(-1, keepdim=True)).to(q.dtype)


def _padded_like(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    inside = positions(k) < lengths[:, None, None, None]
    return attend(q, k, v, inside & causal(q, k))


def _padding() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        q, k, x = (v(3, 2, 15, 16) for _ in range(3))
        return q, k, x, torch.tensor([15, 9, 4], device=q.device)

    problem = Problem("attention with padding", _padded_like, operands)
    like = _padded_like
    yield from problem.wrong(
        ("mask", "padding is seen", lambda q, k, v, n: attend(q, k, v),
         "TransformerLensOrg/TransformerLens#999"),
        ("mask", "one key of the padding is seen", lambda q, k, v, n: like(q, k, v, n + 1)),
        ("mask", "last key before the padding is not seen", lambda q, k, v, n: like(
            q, k, v, n - 1)),
        ("index", "length of the first sequence for all", lambda q, k, v, n: like(
            q, k, v, n[:1].expand(3))),
        ("mask", "padding is on the left", lambda q, k, v, n: attend(q, k, v, causal(q, k) & (
            positions(k) >= 15 - n[:, None, None, None])), "ndif-team/nnsight#673"),
        ("constant", "lengths are whole blocks of 4", lambda q, k, v, n: like(
            q, k, v, (n + 3) // 4 * 4)),
    )  # fmt: skip
    yield from problem.right(
        ("each sequence alone", lambda q, k, v, n: torch.cat([
            attend(q[i : i + 1], k[i : i + 1, :, :m], v[i : i + 1, :, :m])
            for i, m in enumerate(n.tolist())])),
    )  # fmt: skip


def _lse_like(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = (wide(q) @ wide(k).transpose(-1, -2) * 0.25).masked_fill(~causal(q, k), -torch.inf)
    return (scores.softmax(-1) @ wide(v)).to(q.dtype), scores.logsumexp(-1)


def _log_sums() -> Iterator[Kernel]:
    problem = Problem("attention and its log-sum-exp", _lse_like, three)

    def summed(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], object]:
        def kernel(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            scores = wide(q) @ wide(k).transpose(-1, -2) * 0.25
            return attend(q, k, v), change(scores.masked_fill(~causal(q, k), -torch.inf))

        return kernel

    yield from problem.wrong(
        ("formula", "to base 2", summed(lambda s: s.logsumexp(-1) * math.log2(math.e)),
         "sgl-project/sglang#35045"),
        ("left out", "maximum not added", summed(
            lambda s: (s - s.amax(-1, keepdim=True)).exp().sum(-1).log())),
        ("formula", "maximum alone", summed(lambda s: s.amax(-1))),
        ("left out", "scores without their scale", summed(lambda s: (s * 4).logsumexp(-1))),
        ("mask", "of all keys", lambda q, k, v: (
            attend(q, k, v), (wide(q) @ wide(k).mT * 0.25).logsumexp(-1))),
        ("precision", "in bfloat16", summed(lambda s: s.logsumexp(-1).bfloat16().to(s.dtype))),
    )  # fmt: skip
    yield from problem.right(
        ("maximum first", summed(lambda s: (s - s.amax(-1, keepdim=True)).exp().sum(-1).log()
                                 + s.amax(-1))),
        ("base 2", summed(lambda s: torch.exp2(
            (s - s.amax(-1, keepdim=True)) * math.log2(math.e)).sum(-1).log2() / math.log2(math.e)
            + s.amax(-1))),
    )  # fmt: skip


def rows() -> Iterator[Kernel]:
    yield from _grouped_rows()
    yield from _windows()
    yield from _caps()
    yield from _sinks()
    yield from _biases()
    yield from _padding()
    yield from _log_sums()
