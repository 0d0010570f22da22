"""Whole numbers and order: argmax, top-k, sorting, routing to experts, sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from .rows import Kernel, Problem, Tensor, Values, swapped, wide, zeroed


def _choices() -> Iterator[Kernel]:
    argmax = Problem("argmax", lambda x: x.argmax(-1), lambda v: (v(9, 70),))
    yield from argmax.wrong(
        ("formula", "of the smallest", lambda x: x.argmin(-1)),
        ("tail", "first half alone", lambda x: x[..., :35].argmax(-1)),
        ("index", "within its tile of 32", lambda x: x.argmax(-1) % 32),
        ("formula", "of the largest magnitude", lambda x: x.abs().argmax(-1)),
        ("axis", "of the rows", lambda x: F.pad(x.argmax(0), (0, 0))[:9]),
        ("index", "one late", lambda x: x.argmax(-1) + 1),
    )
    yield from argmax.right(
        ("by tiles", lambda x: _by_tiles(x)),
        ("by sorting", lambda x: torch.sort(x, dim=-1, descending=True, stable=True)[1][..., 0]),
    )
    top = Problem("topk", lambda x: x.topk(3), lambda v: (v(9, 70),))
    yield from top.wrong(
        ("index", "indices half as wide", lambda x: (x.topk(3)[0], x.topk(3)[1] % 16),
         "tenstorrent/tt-metal#52928"),
        ("order", "from the smallest", lambda x: tuple(t.flip(-1) for t in x.topk(3))),
        ("formula", "smallest three", lambda x: x.topk(3, largest=False)),
        ("tail", "first 64 columns alone", lambda x: x[:, :64].topk(3)),
        ("index", "second and third place exchanged", lambda x: (
            x.topk(3)[0], swapped(x.topk(3)[1], 1, 2))),
    )  # fmt: skip
    yield from top.right(
        ("by sorting", lambda x: tuple(t[..., :3] for t in x.sort(-1, descending=True))),
    )
    order = Problem("sort", lambda x: x.sort(-1)[0], lambda v: (v(9, 70),))
    yield from order.wrong(
        ("order", "descending", lambda x: x.sort(-1, descending=True)[0]),
        ("tail", "last 6 not sorted", lambda x: torch.cat([x[:, :64].sort(-1)[0], x[:, 64:]], 1)),
        ("race", "one exchange missed", lambda x: swapped(x.sort(-1)[0], 30, 31)),
        ("order", "halves not merged", lambda x: torch.cat(
            [x[:, :35].sort(-1)[0], x[:, 35:].sort(-1)[0]], 1)),
        ("axis", "over the rows", lambda x: x.sort(0)[0]),
    )  # fmt: skip
    yield from order.right(("by odd and even exchanges", lambda x: _exchanges(x)))


def _by_tiles(x: Tensor) -> Tensor:
    values, at = zip(*(part.max(-1) for part in x.split(16, -1)), strict=True)
    tile = torch.stack(values).max(0)[1]
    return torch.stack(at).gather(0, tile[None])[0] + 16 * tile


def _exchanges(x: Tensor) -> Tensor:
    for step in range(x.shape[-1]):
        pairs = x[:, step % 2 : step % 2 + (x.shape[-1] - step % 2) // 2 * 2].unflatten(-1, (-1, 2))
        both = torch.cat([pairs.amin(-1, keepdim=True), pairs.amax(-1, keepdim=True)], -1)
        x = torch.cat([x[:, : step % 2], both.flatten(-2), x[:, step % 2 + 2 * both.shape[1] :]], 1)
    return x


def _experts(x: Tensor, chosen: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
    """A sum over the experts that are given, in float32."""
    each = torch.einsum("tc,ecd->ted", wide(x), wide(experts))
    picked = each.gather(1, chosen[..., None].expand(-1, -1, each.shape[-1]))
    return (wide(weights)[..., None] * picked).sum(1).to(x.dtype)


def _moe_like(x: Tensor, scores: Tensor, experts: Tensor) -> Tensor:
    weights, chosen = wide(scores).softmax(-1).topk(2)
    return _experts(x, chosen, weights / weights.sum(-1, keepdim=True), experts)


def _moe_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        return v(64, 16), v.normal(64, 6), v.weight(6, 16, 16)

    problem = Problem("mixture of experts", _moe_like, operands, share=0.95)
    like = _moe_like

    def routed(change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> object:
        def kernel(x: Tensor, scores: Tensor, experts: Tensor) -> Tensor:
            weights, chosen = wide(scores).softmax(-1).topk(2)
            chosen, weights = change(chosen, weights, wide(scores))
            return _experts(x, chosen, weights, experts)

        return kernel

    def normed(w: Tensor) -> Tensor:
        return w / w.sum(-1, keepdim=True)

    yield from problem.wrong(
        ("left out", "weights not normalised", routed(lambda c, w, s: (c, w)),
         "leonickson1/Swiftlet#6"),
        ("left out", "no weights", routed(lambda c, w, s: (c, torch.full_like(w, 0.5)))),
        ("index", "weights of the two exchanged", routed(lambda c, w, s: (c, normed(w).flip(-1)))),
        ("index", "next expert", routed(lambda c, w, s: ((c + 1) % 6, normed(w)))),
        ("tail", "first expert alone", routed(
            lambda c, w, s: (c, normed(w) * w.new_tensor([1, 0])))),
        ("formula", "sigmoid for softmax", routed(
            lambda c, w, s: (c, normed(s.sigmoid().gather(1, c))))),
        ("formula", "scores of magnitude", lambda x, s, e: like(x, s.abs(), e),
         "flashinfer-ai/flashinfer#2822"),
        ("unwritten", "3 of 64 tokens", lambda x, s, e: zeroed(like(x, s, e), slice(61, None))),
        ("unwritten", "all tokens but the first", lambda x, s, e: zeroed(
            like(x, s, e), slice(1, None)), "vllm-project/vllm-xpu-kernels#453"),
        ("tail", "at most 16 tokens for an expert", lambda x, s, e: _bounded(x, s, e, 16),
         "sgl-project/sglang#27194"),
        ("index", "expert 5 is expert 0", routed(lambda c, w, s: (c % 5, normed(w))),
         "sgl-project/sglang#12701"),
        ("precision", "sums of experts in bfloat16", lambda x, s, e: like(
            x, s, e.bfloat16().to(e.dtype)), "", "f32"),
        ("index", "experts transposed", lambda x, s, e: like(x, s, e.mT)),
    )  # fmt: skip
    yield from problem.right(
        ("softmax of the two chosen", routed(lambda c, w, s: (c, s.gather(1, c).softmax(-1)))),  # type: ignore[arg-type]
        ("expert by expert", lambda x, s, e: _each_expert(x, s, e)),
    )


def _bounded(x: Tensor, scores: Tensor, experts: Tensor, most: int) -> Tensor:
    weights, chosen = wide(scores).softmax(-1).topk(2)
    weights = weights / weights.sum(-1, keepdim=True)
    places = F.one_hot(chosen.flatten(), 6).cumsum(0).gather(1, chosen.flatten()[:, None])
    return _experts(x, chosen, weights * (places.reshape(chosen.shape) <= most), experts)


def _each_expert(x: Tensor, scores: Tensor, experts: Tensor) -> Tensor:
    weights, chosen = wide(scores).softmax(-1).topk(2)
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(wide(x))
    for expert in range(6):
        token, place = (chosen == expert).nonzero(as_tuple=True)
        out[token] += weights[token, place, None] * (wide(x)[token] @ wide(experts)[expert])
    return out.to(x.dtype)


def _penalised_like(x: Tensor, seen: Tensor) -> Tensor:
    scores = wide(x) / 0.7
    return torch.where(seen > 0, torch.where(scores > 0, scores / 1.3, scores * 1.3), scores)


def _sampling_rows() -> Iterator[Kernel]:
    problem = Problem(
        "temperature and repetition penalty",
        _penalised_like,
        lambda v: (v(4, 90, scale=4.0), v.below(2, 4, 90)),
    )
    like = _penalised_like
    yield from problem.wrong(
        ("formula", "temperature multiplied", lambda x, s: like(x * 0.49, s)),
        ("left out", "negative scores divided, too", lambda x, s: torch.where(
            s > 0, wide(x) / 0.91, wide(x) / 0.7)),
        ("left out", "no penalty", lambda x, s: wide(x) / 0.7),
        ("index", "penalty for what was not seen", lambda x, s: like(x, 1 - s)),
        ("index", "tokens of the first sequence for all", lambda x, s: like(x, s[:1])),
        ("axis", "token ids one late", lambda x, s: like(x, s.roll(1, -1))),
    )  # fmt: skip
    yield from problem.right(
        ("a factor for each", lambda x, s: wide(x) * torch.where(
            s > 0, torch.where(x > 0, 1 / (0.7 * 1.3), 1.3 / 0.7), 1 / 0.7).to(wide(x).dtype)),
    )  # fmt: skip


def _top_p_like(x: Tensor) -> Tensor:
    """What is left of a row after the likeliest tokens that add up to 0.8."""
    values, order = wide(x).softmax(-1).sort(-1, descending=True)
    kept = (values.cumsum(-1) - values < 0.8).gather(-1, order.argsort(-1))
    p = wide(x).softmax(-1) * kept
    return p / p.sum(-1, keepdim=True)


def _top_p_rows() -> Iterator[Kernel]:
    problem = Problem("top-p", _top_p_like, lambda v: (v(6, 40, scale=2.0),), kinds=("normal",))

    def kept(rule: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def kernel(x: Tensor) -> Tensor:
            values, order = wide(x).softmax(-1).sort(-1, descending=True)
            p = wide(x).softmax(-1) * rule(values).gather(-1, order.argsort(-1))
            return p / p.sum(-1, keepdim=True)

        return kernel

    yield from problem.wrong(
        ("mask", "without the token that crosses", kept(lambda v: v.cumsum(-1) < 0.8)),
        ("left out", "nothing is dropped", lambda x: wide(x).softmax(-1)),
        ("left out", "not normalised again", lambda x: wide(x).softmax(-1) * (_top_p_like(x) > 0)),
        ("order", "unlikeliest tokens first", kept(
            lambda v: v.flip(-1).cumsum(-1).flip(-1) - v < 0.8)),
        ("constant", "0.9 for 0.8", kept(lambda v: v.cumsum(-1) - v < 0.9)),
    )  # fmt: skip
    yield from problem.right(
        ("softmax of what is kept", lambda x: wide(x).masked_fill(
            _top_p_like(x) == 0, -torch.inf).softmax(-1)),
    )  # fmt: skip


def rows() -> Iterator[Kernel]:
    yield from _choices()
    yield from _moe_rows()
    yield from _sampling_rows()
    yield from _top_p_rows()
