"""RMSNorm, LayerNorm and their fused forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from .rows import Kernel, Problem, Tensor, wide, zeroed
from .sums import ROOTS, SUMS, sum_in_16_bits

EPS = 1e-5


def rms_norm_like(x: Tensor, w: Tensor) -> Tensor:
    n = wide(x)
    return w * (n * torch.rsqrt(n.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def layer_norm_like(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def _rms(x: Tensor, w: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
    return (wide(w) * wide(x) * factor(wide(x))).to(x.dtype)


def _root(
    eps: float = EPS, upto: int | None = None, n: int = 0, of: Callable[[Tensor], Tensor] = wide
) -> Callable[[Tensor], Tensor]:
    """1 / root of the mean square, of `upto` elements over n, squares rounded by `of`."""

    def factor(x: Tensor) -> Tensor:
        squares = of(x[..., :upto].square()).sum(-1, keepdim=True)
        return torch.rsqrt(squares / (n or x.shape[-1]) + eps)

    return factor


def _half(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


def _by_bits(x: Tensor) -> Tensor:
    """1 / root by the constant of Quake III and one Newton step."""
    if x.dtype == torch.float64:
        return _by_bits(x.float()).double()
    y = (0x5F3759DF - (x.contiguous().view(torch.int32) >> 1)).view(torch.float32)
    return y * (1.5 - 0.5 * x * y * y)


def _small_left_out(y: Tensor) -> Tensor:
    """The four smallest are zero, however large a seed makes those."""
    least = y.abs().flatten().kthvalue(5).values
    return torch.where(y.abs() < least, 0, y)


def _truncated(y: Tensor) -> Tensor:
    """In bfloat16, by its upper half alone."""
    bits = y.float().contiguous().view(torch.int32) & -65536
    return bits.view(torch.float32).to(torch.bfloat16)


def _rms_rows() -> Iterator[Kernel]:
    problem = Problem(
        "rms_norm", rms_norm_like, lambda v: (v(9, 70), v.about_one(70)), relative=True
    )
    like = rms_norm_like
    yield from problem.wrong(
        ("tail", "tail of the row not counted", lambda x, w: _rms(x, w, _root(upto=64))),
        ("constant", "divided by the padded size", lambda x, w: _rms(x, w, _root(n=128))),
        ("constant", "divided by n - 1", lambda x, w: _rms(x, w, _root(n=69))),
        ("epsilon", "no eps", lambda x, w: _rms(x, w, _root(0.0))),
        ("epsilon", "eps of 1e-6", lambda x, w: _rms(x, w, _root(1e-6))),
        ("epsilon", "eps of 1e-2", lambda x, w: _rms(x, w, _root(1e-2))),
        ("epsilon", "eps outside the root",
         lambda x, w: _rms(x, w, lambda n: 1 / (n.square().mean(-1, keepdim=True).sqrt() + EPS))),
        ("left out", "no weight", lambda x, w: like(x, torch.ones_like(w))),
        ("formula", "1 + weight", lambda x, w: like(x, 1 + w), "raullenchai/Rapid-MLX#1234"),
        ("index", "weight shifted by one", lambda x, w: like(x, w.roll(1))),
        ("order", "weight before the norm", lambda x, w: like(x * w, torch.ones_like(w))),
        ("unwritten", "last row", lambda x, w: zeroed(like(x, w), -1)),
        ("unwritten", "last column", lambda x, w: zeroed(like(x, w), ..., -1)),
        ("formula", "mean subtracted", lambda x, w: like(x - x.mean(-1, keepdim=True), w)),
        ("formula", "root of the sum", lambda x, w: _rms(x, w, _root(n=1)),
         "tenstorrent/tt-xla#5209"),
        ("formula", "largest value for the root",
         lambda x, w: _rms(x, w, lambda n: 1 / (n.abs().amax(-1, keepdim=True) + EPS))),
        ("formula", "mean of absolute values",
         lambda x, w: _rms(x, w, lambda n: 1 / (n.abs().mean(-1, keepdim=True) + EPS))),
        ("index", "factor of the first row for all", lambda x, w: _rms(
            x, w, lambda n: torch.rsqrt(n[:1].square().mean(-1, keepdim=True) + EPS))),
        ("axis", "mean square of all rows", lambda x, w: _rms(
            x, w, lambda n: torch.rsqrt(n.square().mean() + EPS))),
        ("scale", "0.8 % high", lambda x, w: (wide(like(x, w)) * 1.008).to(x.dtype)),
        ("precision", "squares in 16 bits", lambda x, w: _rms(x, w, _root(of=_half)), "", "f32"),
        ("precision", "factor in 16 bits",
         lambda x, w: _rms(x, w, lambda n: _half(_root()(n))), "", "f32"),
        ("precision", "sum of squares in 16 bits", lambda x, w: _rms(x, w, lambda n: torch.rsqrt(
            sum_in_16_bits(n.square())[..., None] / x.shape[-1] + EPS))),
        ("precision", "truncated, not rounded",
         lambda x, w: _truncated(_rms(wide(x), w, _root())).to(x.dtype), "", "bf16"),
        ("approximation", "reciprocal root by bits", lambda x, w: _rms(
            x, w, lambda n: _by_bits(n.square().mean(-1, keepdim=True) + EPS)), "", "f32"),
        ("flushed", "small values are zero", lambda x, w: _small_left_out(like(x, w))),
        ("input", "its input is destroyed", lambda x, w: (like(x, w), x.zero_())[0]),
    )  # fmt: skip
    for way, total in SUMS.items():
        for root, function in ROOTS.items():
            for eager in (False, True):
                name = f"{way}, {root}{', rounded before the weight' if eager else ''}"
                yield from problem.right((name, _right_rms(total, function, eager)))


def _right_rms(total: Any, root: Callable[[Tensor], Tensor], eager: bool) -> Any:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        n = wide(x) * root(total(wide(x).square())[..., None] / x.shape[-1] + EPS)
        return w * n.to(x.dtype) if eager else (wide(w) * n).to(x.dtype)

    return kernel


def _add_norm_like(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return rms_norm_like(x + r, w), x + r


def _add_norm_rows() -> Iterator[Kernel]:
    problem = Problem(
        "add_rms_norm", _add_norm_like, lambda v: (v(9, 70), v(9, 70), v.about_one(70))
    )
    norm = rms_norm_like
    yield from problem.wrong(
        ("left out", "the residual stays what it was", lambda x, r, w: (norm(x + r, w), r.clone()),
         "ROCm/aiter#2011"),
        ("order", "added after the norm", lambda x, r, w: (norm(x, w) + r, x + r)),
        ("formula", "added twice", lambda x, r, w: (norm(x + 2 * r, w), x + r)),
        ("index", "the norm is returned for both", lambda x, r, w: (norm(x + r, w),) * 2),
        ("left out", "the norm of x alone", lambda x, r, w: (norm(x, w), x + r)),
        ("index", "residual of the row before", lambda x, r, w: _add_norm_like(x, r.roll(1, 0), w)),
        ("order", "results exchanged", lambda x, r, w: _add_norm_like(x, r, w)[::-1]),
    )  # fmt: skip
    yield from problem.right(
        ("sum one by one", lambda x, r, w: (
            _right_rms(SUMS["one by one"], torch.rsqrt, True)(x + r, w), x + r)),
        ("sum by pairs", lambda x, r, w: (
            _right_rms(SUMS["pairs"], ROOTS["1 / sqrt"], True)(x + r, w), r + x)),
    )  # fmt: skip


def _centred(x: Tensor) -> Tensor:
    return wide(x) - wide(x).mean(-1, keepdim=True)


def _layer(x: Tensor, w: Tensor, b: Tensor, centred: Tensor, variance: Tensor) -> Tensor:
    return (centred * torch.rsqrt(variance + EPS) * wide(w) + wide(b)).to(x.dtype)


def _variance(x: Tensor, n: int = 0) -> Tensor:
    return _centred(x).square().sum(-1, keepdim=True) / (n or x.shape[-1])


def _layer_rows() -> Iterator[Kernel]:
    problem = Problem(
        "layer_norm", layer_norm_like, lambda v: (v(9, 70), v.about_one(70), v.normal(70))
    )
    like = layer_norm_like
    yield from problem.wrong(
        ("left out", "no bias", lambda x, w, b: like(x, w, torch.zeros_like(b))),
        ("left out", "no weight", lambda x, w, b: like(x, torch.ones_like(w), b)),
        ("order", "bias times the weight", lambda x, w, b: like(x, w, b * w)),
        ("index", "bias shifted by one", lambda x, w, b: like(x, w, b.roll(1))),
        ("formula", "1 + weight", lambda x, w, b: like(x, 1 + w, b),
         "quantumaikr/quant.cpp#23"),
        ("scale", "2 % high", lambda x, w, b: like(x, w, b) * 1.02),
        ("formula", "mean added", lambda x, w, b: like(x, w, b) + x.mean(-1, keepdim=True)),
        ("left out", "mean not subtracted", lambda x, w, b: _layer(
            x, w, b, wide(x), wide(x).square().mean(-1, keepdim=True))),
        ("constant", "variance over n - 1",
         lambda x, w, b: _layer(x, w, b, _centred(x), _variance(x, 69))),
        ("constant", "variance over the padded size",
         lambda x, w, b: _layer(x, w, b, _centred(x), _variance(x, 128))),
        ("tail", "padding counted in the variance", lambda x, w, b: _layer(
            x, w, b, _centred(x),
            _variance(x) + 58 / 70 * wide(x).mean(-1, keepdim=True).square())),
        ("tail", "mean without the tail", lambda x, w, b: _layer(
            x, w, b, wide(x) - wide(x)[..., :64].sum(-1, keepdim=True) / 70, _variance(x))),
        ("epsilon", "no eps", lambda x, w, b: F.layer_norm(x, (70,), w, b, 0.0)),
        ("epsilon", "eps of 1e-6", lambda x, w, b: F.layer_norm(x, (70,), w, b, 1e-6)),
        ("epsilon", "eps outside the root", lambda x, w, b: (
            _centred(x) / (_variance(x).sqrt() + EPS) * wide(w) + wide(b)).to(x.dtype)),
        ("formula", "deviation for the variance",
         lambda x, w, b: _layer(x, w, b, _centred(x), _variance(x).sqrt())),
        ("axis", "over the rows", lambda x, w, b: _layer(
            x, w, b, wide(x) - wide(x).mean(0), wide(x).var(0, correction=0))),
        ("unwritten", "last row", lambda x, w, b: zeroed(like(x, w, b), -1)),
        ("precision", "mean in 16 bits", lambda x, w, b: _layer(
            x, w, b, wide(x) - _half(wide(x).mean(-1, keepdim=True)), _variance(x)), "", "f32"),
        ("index", "deviation of the row before",
         lambda x, w, b: _layer(x, w, b, _centred(x), _variance(x).roll(1, 0))),
    )  # fmt: skip
    for way, total in SUMS.items():
        for root, function in ROOTS.items():
            yield from problem.right((f"{way}, {root}", _right_layer(total, function)))


def _right_layer(total: Any, root: Callable[[Tensor], Tensor]) -> Any:
    def kernel(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        off = wide(x) - total(wide(x))[..., None] / x.shape[-1]
        n = off * root(total(off * off)[..., None] / x.shape[-1] + EPS)
        return (n * wide(w) + wide(b)).to(x.dtype)

    return kernel


def _far_rows() -> Iterator[Kernel]:
    problem = Problem(
        "layer_norm of a mean of 300",
        layer_norm_like,
        lambda v: (v(9, 70, shift=300.0), v.about_one(70), v.normal(70)),
        kinds=("normal",),
    )
    yield from problem.wrong(
        ("algorithm", "mean square less squared mean", lambda x, w, b: _layer(
            x, w, b, _centred(x), wide(x).square().mean(-1, keepdim=True)
            - wide(x).mean(-1, keepdim=True).square()), "", "f32"),
        ("precision", "mean in 16 bits", lambda x, w, b: _layer(
            x, w, b, wide(x) - _half(wide(x).mean(-1, keepdim=True)), _variance(x))),
        ("left out", "mean not subtracted", lambda x, w, b: _layer(x, w, b, wide(x), _variance(x))),
    )  # fmt: skip
    yield from problem.right(
        ("Welford", _welford),
        ("shifted by the first value", lambda x, w, b: _right_layer(SUMS["pairs"], torch.rsqrt)(
            wide(x) - wide(x)[..., :1], w, b).to(x.dtype)),
    )  # fmt: skip


def _welford(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean, squares = torch.zeros_like(wide(x)[..., 0]), torch.zeros_like(wide(x)[..., 0])
    for i in range(x.shape[-1]):
        off = wide(x)[..., i] - mean
        mean = mean + off / (i + 1)
        squares = squares + off * (wide(x)[..., i] - mean)
    variance = (squares / x.shape[-1])[..., None]
    return _layer(x, w, b, wide(x) - mean[..., None], variance)


def rows() -> Iterator[Kernel]:
    yield from _rms_rows()
    yield from _add_norm_rows()
    yield from _layer_rows()
    yield from _far_rows()
