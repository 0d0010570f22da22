"""Softmax, sums, statistics, running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from .attention import fast_exp
from .rows import Kernel, Problem, Tensor, Values, wide, zeroed
from .sums import SUMS, sum_in_16_bits


def _softmax_like(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _normalised(x: Tensor, power: Callable[[Tensor], Tensor] = torch.exp) -> Tensor:
    e = power(wide(x) - wide(x).amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def online(x: Tensor, block: int = 16, *, rescaled: bool = True) -> Tensor:
    """Two passes; the first has a running maximum."""
    most = wide(x).new_full((*x.shape[:-1], 1), -torch.inf)
    total = torch.zeros_like(most)
    for part in wide(x).split(block, -1):
        new = torch.maximum(most, part.amax(-1, keepdim=True))
        total = total * ((most - new).exp() if rescaled else 1)
        total, most = total + (part - new).exp().sum(-1, keepdim=True), new
    return ((wide(x) - most).exp() / total).to(x.dtype)


def _by(total: Callable[[Tensor], Tensor], base2: bool, reciprocal: bool) -> object:
    def kernel(x: Tensor) -> Tensor:
        off = wide(x) - wide(x).amax(-1, keepdim=True)
        e = torch.exp2(off * math.log2(math.e)) if base2 else off.exp()
        s = total(e)[..., None]
        return (e * (1 / s) if reciprocal else e / s).to(x.dtype)

    return kernel


def _softmax_rows() -> Iterator[Kernel]:
    problem = Problem("softmax", _softmax_like, lambda v: (v(9, 70, scale=3.0),), relative=True)
    yield from problem.wrong(
        ("tail", "last column left out", lambda x: F.pad(x[..., :-1].softmax(-1), (0, 1))),
        ("tail", "tail not in the sum", lambda x: (wide(x).softmax(-1) / wide(x).softmax(-1)[
            ..., :64].sum(-1, keepdim=True)).to(x.dtype)),
        ("tail", "padding of zeros in the sum", lambda x: F.pad(x, (0, 58)).softmax(-1)[..., :70]),
        ("axis", "over the rows", lambda x: x.softmax(0)),
        ("axis", "over everything", lambda x: x.flatten().softmax(0).reshape(x.shape)),
        ("formula", "to base 2", lambda x: (x * math.log(2)).softmax(-1)),
        ("left out", "not normalised", lambda x: (x - x.amax(-1, keepdim=True)).exp()),
        ("left out", "maximum not subtracted",
         lambda x: (wide(x).exp() / wide(x).exp().sum(-1, keepdim=True)).to(x.dtype),
         "vllm-project/vllm#56578"),
        ("scale", "a temperature of 1.02", lambda x: (x / 1.02).softmax(-1)),
        ("formula", "its logarithm", lambda x: x.log_softmax(-1)),
        ("stale", "total not rescaled", lambda x: online(x, rescaled=False)),
        ("approximation", "exp by the bits", lambda x: _normalised(x, fast_exp)),
        ("precision", "in float16", lambda x: x.half().softmax(-1).to(x.dtype),
         "tinygrad/tinygrad#12438", "f32"),
        ("precision", "sum in 16 bits", lambda x: _by(sum_in_16_bits, False, False)(x)),  # type: ignore[operator]
        ("index", "maximum of the first row", lambda x: (
            (wide(x) - wide(x)[:1].amax(-1, keepdim=True)).exp() / (
                wide(x) - wide(x).amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)).to(x.dtype)),
        ("flushed", "weights below 1e-3 are zero", lambda x: torch.where(
            x.softmax(-1) < 1e-3, 0, x.softmax(-1))),
    )  # fmt: skip
    for way, total in SUMS.items():
        for base2, reciprocal in ((False, False), (True, False), (True, True)):
            name = f"{way}{', base 2' * base2}{', reciprocal' * reciprocal}"
            yield from problem.right((name, _by(total, base2, reciprocal)))  # type: ignore[arg-type]
    yield from problem.right(("running maximum", online))


def _wide_rows() -> Iterator[Kernel]:
    problem = Problem("softmax of 16384", _softmax_like, lambda v: (v(4, 16384),), relative=True)

    def without(x: Tensor, columns: slice) -> Tensor:
        e = (wide(x) - wide(x).amax(-1, keepdim=True)).exp()
        return (e / zeroed(e, ..., columns).sum(-1, keepdim=True)).to(x.dtype)

    yield from problem.wrong(
        ("cheat", "zeros", torch.zeros_like),
        ("cheat", "1 / n everywhere", lambda x: torch.full_like(x, 1 / x.shape[-1])),
        ("tail", "last block of 1024 not written",
         lambda x: zeroed(x.softmax(-1), ..., slice(-1024, None))),
        ("tail", "last block of 1024 not in the sum", lambda x: without(x, slice(-1024, None))),
        ("race", "one of 32 partial sums lost", lambda x: without(x, slice(512, 1024))),
        ("approximation", "exp by the bits", lambda x: _normalised(x, fast_exp)),
        ("precision", "exponents in 8 bits", lambda x: _normalised(
            x, lambda t: t.exp().to(torch.float8_e5m2).to(t.dtype))),
        ("index", "the row before", lambda x: x.softmax(-1).roll(1, 0)),
        ("axis", "blocks of 4096 alone, over 4", lambda x: (
            x.unflatten(-1, (4, -1)).softmax(-1) / 4).flatten(-2)),
    )  # fmt: skip
    yield from problem.right(
        ("blocks of 1024", lambda x: online(x, 1024)),
        ("sum by pairs", _by(SUMS["pairs"], False, True)),  # type: ignore[arg-type]
    )


def _log_rows() -> Iterator[Kernel]:
    problem = Problem("log_softmax", lambda x: x.log_softmax(-1), lambda v: (v(9, 70, scale=3.0),))
    yield from problem.wrong(
        ("formula", "logarithm of the softmax", lambda x: x.softmax(-1).log()),
        ("left out", "maximum not subtracted",
         lambda x: (wide(x) - wide(x).exp().sum(-1, keepdim=True).log()).to(x.dtype)),
        ("formula", "to base 2", lambda x: x.log_softmax(-1) / math.log(2)),
        ("axis", "over the rows", lambda x: x.log_softmax(0)),
        ("tail", "tail not in the sum", lambda x: (
            wide(x) - wide(x)[..., :64].logsumexp(-1, keepdim=True)).to(x.dtype)),
        ("epsilon", "1e-6 in the logarithm", lambda x: (wide(x).softmax(-1) + 1e-6).log().to(
            x.dtype)),
    )  # fmt: skip
    yield from problem.right(
        ("running sum", lambda x: (wide(x) - wide(x).logsumexp(-1, keepdim=True)).to(x.dtype)),
        ("sum compensated", lambda x: (
            (wide(x) - wide(x).amax(-1, keepdim=True))
            - SUMS["compensated"]((wide(x) - wide(x).amax(-1, keepdim=True)).exp()).log()[:, None]
        ).to(x.dtype)),
    )  # fmt: skip


def _sum_rows() -> Iterator[Kernel]:
    problem = Problem("sum of 700", lambda x: x.sum(-1), lambda v: (v(24, 700),))

    def of(total: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: total(wide(x)).to(x.dtype)

    yield from problem.wrong(
        ("tail", "beyond 512", of(lambda x: x[..., :512].sum(-1))),
        ("tail", "last element", of(lambda x: x[..., :-1].sum(-1))),
        ("precision", "accumulator in bfloat16", of(sum_in_16_bits)),
        ("race", "one of 32 lanes lost", of(lambda x: zeroed(x, ..., slice(5, None, 32)).sum(-1))),
        ("race", "one of 32 lanes twice",
         of(lambda x: x.sum(-1) + x[..., 5::32].sum(-1))),
        ("formula", "of absolute values", of(lambda x: x.abs().sum(-1))),
        ("stale", "total of the row before added", of(lambda x: x.sum(-1).cumsum(0))),
        ("axis", "of neighbours in memory", of(lambda x: x.T.reshape(24, 700).sum(-1))),
    )  # fmt: skip
    for way, total in SUMS.items():
        yield from problem.right((way, of(total)))
    mean = Problem("mean", lambda x: x.mean(-1), lambda v: (v(24, 70),))
    yield from mean.wrong(
        ("constant", "over n - 1", of(lambda x: x.sum(-1) / 69)),
        ("constant", "over the padded size", of(lambda x: x.sum(-1) / 128)),
        ("formula", "middle of the range", of(lambda x: (x.amax(-1) + x.amin(-1)) / 2)),
        ("formula", "median", of(lambda x: x.median(-1)[0])),
    )
    yield from mean.right(
        ("divided first", of(lambda x: (x / 70).sum(-1))),
        ("pairs", of(lambda x: SUMS["pairs"](x) / 70)),
    )


def _variance_rows() -> Iterator[Kernel]:
    problem = Problem("var", lambda x: x.var(-1), lambda v: (v(24, 70, shift=30.0),),
                      kinds=("normal",))  # fmt: skip

    def of(value: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: value(wide(x)).to(x.dtype)

    yield from problem.wrong(
        ("constant", "over n", of(lambda x: x.var(-1, correction=0))),
        ("formula", "deviation", of(lambda x: x.std(-1))),
        ("left out", "mean not subtracted", of(lambda x: x.square().sum(-1) / 69)),
        ("algorithm", "mean square less squared mean",
         of(lambda x: (x.square().mean(-1) - x.mean(-1).square()) * 70 / 69), "", "f32"),
        ("precision", "mean in bfloat16", of(lambda x: (
            x - x.mean(-1, keepdim=True).bfloat16().to(x.dtype)).square().sum(-1) / 69), "", "f32"),
        ("formula", "of neighbours", of(lambda x: x.diff(dim=-1).square().mean(-1) / 2)),
    )  # fmt: skip
    yield from problem.right(
        ("two passes", of(lambda x: (x - x.mean(-1, keepdim=True)).square().sum(-1) / 69)),
        ("shifted by the first value", of(lambda x: (x - x[:, :1]).var(-1))),
    )


def _running_rows() -> Iterator[Kernel]:
    problem = Problem("cumsum", lambda x: x.cumsum(-1), lambda v: (v(5, 70),))

    def blocks(x: Tensor, size: int, carry: Callable[[Tensor], Tensor] = wide) -> Tensor:
        parts, before = [], torch.zeros_like(wide(x)[..., :1])
        for part in wide(x).split(size, -1):
            parts.append(part.cumsum(-1) + before)
            before = carry(parts[-1][..., -1:])
        return torch.cat(parts, -1).to(x.dtype)

    yield from problem.wrong(
        ("index", "exclusive", lambda x: (wide(x).cumsum(-1) - wide(x)).to(x.dtype)),
        ("stale", "begins again at 32", lambda x: blocks(x, 32, torch.zeros_like)),
        ("order", "from the end", lambda x: x.flip(-1).cumsum(-1).flip(-1)),
        ("axis", "over the rows", lambda x: x.cumsum(0)),
        ("stale", "carry of one block alone", lambda x: _one_carry(x)),
        ("precision", "carry in bfloat16",
         lambda x: blocks(x, 16, lambda t: t.bfloat16().to(t.dtype)), "", "f32"),
        ("precision", "accumulator in bfloat16",
         lambda x: blocks(x, 1, lambda t: t.bfloat16().to(t.dtype))),
        ("race", "carry of block 1 added twice", lambda x: torch.cat([
            wide(x).cumsum(-1)[:, :32],
            wide(x).cumsum(-1)[:, 32:] + wide(x)[:, 16:32].sum(-1, keepdim=True)], -1).to(x.dtype)),
    )  # fmt: skip
    yield from problem.right(
        ("blocks of 7", lambda x: blocks(x, 7)),
        ("one by one", lambda x: blocks(x, 1)),
        ("doubling steps", lambda x: _doubling(wide(x)).to(x.dtype)),
        ("a product with ones", lambda x: (
            wide(x) @ torch.ones(70, 70, device=x.device, dtype=wide(x).dtype).triu()).to(x.dtype)),
    )  # fmt: skip
    product = Problem("cumprod", lambda x: x.cumprod(-1), lambda v: (v.about_one(5, 40),))
    yield from product.wrong(
        ("formula", "exp of summed logarithms of magnitudes",
         lambda x: (wide(x).abs() * 1.01).log().cumsum(-1).exp().to(x.dtype)),
        ("stale", "begins again at 32", lambda x: torch.cat(
            [x[:, :32].cumprod(-1), x[:, 32:].cumprod(-1)], 1)),
        ("index", "exclusive", lambda x: F.pad(x.cumprod(-1)[:, :-1], (1, 0), value=1.0)),
        ("precision", "in bfloat16", lambda x: x.bfloat16().cumprod(-1).to(x.dtype), "", "f32"),
    )  # fmt: skip
    yield from product.right(
        ("blocks of 8", lambda x: _product_blocks(x)),
    )


def _one_carry(x: Tensor) -> Tensor:
    parts = [part.cumsum(-1) for part in wide(x).split(16, -1)]
    ends = [torch.zeros_like(parts[0][:, :1]), *(part[:, -1:] for part in parts[:-1])]
    return torch.cat([p + e for p, e in zip(parts, ends, strict=True)], -1).to(x.dtype)


def _doubling(x: Tensor) -> Tensor:
    step = 1
    while step < x.shape[-1]:
        x = x + F.pad(x[..., :-step], (step, 0))
        step *= 2
    return x


def _product_blocks(x: Tensor) -> Tensor:
    parts, before = [], torch.ones_like(wide(x)[:, :1])
    for part in wide(x).split(8, -1):
        parts.append(part.cumprod(-1) * before)
        before = parts[-1][:, -1:]
    return torch.cat(parts, -1).to(x.dtype)


def _shapes(v: Values) -> tuple[Tensor]:
    return (v(9, 70, scale=3.0),)


def _log_sum_rows() -> Iterator[Kernel]:
    problem = Problem("logsumexp", lambda x: x.logsumexp(-1), _shapes)

    def of(value: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: value(wide(x)).to(x.dtype)

    yield from problem.wrong(
        ("left out", "maximum not subtracted", of(lambda x: x.exp().sum(-1).log())),
        ("left out", "maximum not added", of(
            lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1).log())),
        ("formula", "of the mean", of(lambda x: x.logsumexp(-1) - math.log(70))),
        ("approximation", "maximum alone", of(lambda x: x.amax(-1))),
        ("tail", "tail not counted", of(lambda x: x[..., :64].logsumexp(-1))),
        ("formula", "to base 2", of(lambda x: x.logsumexp(-1) * math.log2(math.e))),
    )  # fmt: skip
    yield from problem.right(
        ("maximum first", of(lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1).log()
                             + x.amax(-1))),
        ("blocks of 16", of(lambda x: torch.stack(
            [p.logsumexp(-1) for p in x.split(16, -1)]).logsumexp(0))),
    )  # fmt: skip


def rows() -> Iterator[Kernel]:
    yield from _softmax_rows()
    yield from _wide_rows()
    yield from _log_rows()
    yield from _sum_rows()
    yield from _variance_rows()
    yield from _running_rows()
    yield from _log_sum_rows()
