"""Kernels that normal operands do not show, or positive ones as benchmarks draw them: check() needs
hard=True to find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from .norms import layer_norm_like, rms_norm_like
from .rows import Kernel, Problem, Tensor, Values, wide

Formula = Callable[..., Tensor]
Row = tuple[str, str, Formula]


def _problem(
    name: str,
    like: Formula,
    *shapes: tuple[int, ...],
    kind: str = "normal",
    scale: float = 1.0,
    relative: bool = False,
) -> Problem:
    def operands(v: Values) -> tuple[Tensor, ...]:
        first, *rest = shapes or ((9, 70),)
        return (v(*first, scale=scale), *(v.about_one(*shape) for shape in rest))

    return Problem(name, like, operands, ("f32",), (kind,), relative, hard=True)


def _rounded(formula: Formula) -> Formula:
    """In float32, or in float64 where the operands are, rounded once."""
    return lambda x, *rest: formula(wide(x), *map(wide, rest)).to(x.dtype)


def _of(problem: Problem, right: Formula, *rows: Row) -> Iterator[Kernel]:
    yield from problem.wrong(*((kind, says, _rounded(it)) for kind, says, it in rows))
    yield from problem.right(
        ("in float64", lambda *x: right(*(t.double() for t in x)).to(x[0].dtype))
    )


def _shifted(x: Tensor, most: Tensor) -> Tensor:
    e = (x - most).exp()
    return e / e.sum(-1, keepdim=True)


def by_blocks(x: Tensor) -> Tensor:
    """With a running maximum that begins at minus infinity, which less itself is no number."""
    most, total = x.new_full((len(x), 1), -torch.inf), x.new_zeros(len(x), 1)
    for part in x.split(16, -1):
        new = torch.maximum(most, part.amax(-1, keepdim=True))
        total = total * (most - new).exp() + (part - new).exp().sum(-1, keepdim=True)
        most = new
    return (x - most).exp() / total


def _scores() -> Iterator[Kernel]:
    def softmax(x: Tensor) -> Tensor:
        return x.softmax(-1)

    yield from _of(
        _problem("softmax of any scores", softmax, relative=True), softmax,
        ("overflow", "without its maximum", lambda x: x.exp() / x.exp().sum(-1, True)),
        ("overflow", "maximum of the first column", lambda x: _shifted(x, x[:, :1])),
        ("overflow", "maximum of the first block", lambda x: _shifted(x, x[:, :32].amax(-1, True))),
        ("overflow", "maximum of all rows", lambda x: _shifted(x, x.amax())),
        ("overflow", "maximum within 50", lambda x: _shifted(x, x.amax(-1, True).clamp(-50, 50))),
        ("overflow", "a first block of minus infinity", by_blocks),
        ("overflow", "maximum at least 0, times 8",
         lambda x: _shifted(x, x.amax(-1, True).clamp_min(0) * 8)),
    )  # fmt: skip
    yield from _of(
        _problem("logsumexp of any scores", lambda x: x.logsumexp(-1)), lambda x: x.logsumexp(-1),
        ("overflow", "without its maximum", lambda x: x.exp().sum(-1).log()),
        ("constant", "result within 60", lambda x: x.logsumexp(-1).clamp(-60, 60)),
    )  # fmt: skip


def _norms() -> Iterator[Kernel]:
    def rms(scale: Callable[[Tensor], Tensor]) -> Formula:
        return lambda x, w: w * x * scale(x.square().mean(-1, keepdim=True))

    yield from _of(
        _problem("rms_norm of any rows", rms_norm_like, (9, 70), (70,), scale=8.0),
        rms(lambda m: torch.rsqrt(m + 1e-5)),
        ("epsilon", "without an epsilon", rms(torch.rsqrt)),
        ("epsilon", "epsilon of another norm", rms(lambda m: torch.rsqrt(m + 1e-8))),
        ("overflow", "squares up to float16's", rms(
            lambda m: torch.rsqrt(m.clamp_max(65504.0) + 1e-5))),
        ("epsilon", "rows of zeros are NaN", lambda x, w: torch.where(
            x.abs().amax(-1, True) > 0, rms_norm_like(x, w), torch.nan)),
        ("sign", "the weight's sign is lost", lambda x, w: rms_norm_like(x, w.abs())),
    )  # fmt: skip

    def by_squares(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean, square = x.mean(-1, keepdim=True), x.square().mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(square - mean.square() + 1e-5) * w + b

    def without_eps(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        off = x - x.mean(-1, keepdim=True)
        return off * torch.rsqrt(off.square().mean(-1, keepdim=True)) * w + b

    yield from _of(
        _problem("layer_norm of any rows", layer_norm_like, (9, 70), (70,), (70,), scale=8.0),
        layer_norm_like,
        ("precision", "variance as a difference of squares", by_squares),
        ("epsilon", "without an epsilon", without_eps),
    )  # fmt: skip
    yield from _of(
        _problem("normalize any rows", lambda x: F.normalize(x, dim=-1)),
        lambda x: x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12),
        ("epsilon", "without an epsilon", lambda x: x / x.square().sum(-1, True).sqrt()),
    )  # fmt: skip
    cosine = _problem(
        "cosine of any rows", lambda x, y: F.cosine_similarity(x, y, dim=-1), (9, 70), (9, 70)
    )
    yield from _of(
        cosine, lambda x, y: F.cosine_similarity(x, y, dim=-1),
        ("epsilon", "without an epsilon",
         lambda x, y: (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))),
    )  # fmt: skip


def _values() -> Iterator[Kernel]:
    tanh = lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)  # noqa: E731
    rows: tuple[tuple[str, Formula, tuple[Row, ...]], ...] = (
        ("softplus", F.softplus, (
            ("overflow", "exponentials overflow", lambda x: x.exp().log1p()),)),
        ("logsigmoid", F.logsigmoid, (
            ("overflow", "logarithm of a sigmoid that is zero", lambda x: x.sigmoid().log()),)),
        ("tanh", torch.tanh, (("overflow", "exponentials overflow", tanh),)),
        ("sigmoid", torch.sigmoid, (
            ("overflow", "its numerator overflows", lambda x: x.exp() / (1 + x.exp())),)),
        ("clone", torch.clone, (
            ("flushed", "denormals are zero", lambda x: torch.where(
                x.abs() < torch.finfo(torch.float32).smallest_normal, 0, x)),
            ("overflow", "through float16", lambda x: torch.where(
                x.abs() > 65504, torch.inf, x)))),
        ("relu", F.relu, (
            ("mask", "as a product", lambda x: x * (x > 0)),
            ("constant", "at most 64", lambda x: x.clamp(0, 64)))),
        ("hard tanh", lambda x: F.hardtanh(x, -8, 8), (
            ("constant", "no upper end", lambda x: x.clamp_min(-8)),)),
        ("gelu", F.gelu, (
            ("overflow", "cubes overflow", lambda x: torch.where(
                x.abs() > 1e12, torch.nan, F.gelu(x))),)),
        ("sign", torch.sign, (("sign", "zero is positive", lambda x: torch.where(
            x >= 0, 1.0, -1.0)),)),
        ("silu", F.silu, (
            ("constant", "linear below -30", lambda x: torch.where(
                x < -30, x * 0.001, F.silu(x))),)),
    )  # fmt: skip
    for name, like, wrong in rows:
        yield from _of(_problem(f"{name} of any values", like, relative=True), like, *wrong)


def _choices() -> Iterator[Kernel]:
    def argmax(x: Tensor) -> Tensor:
        return x.argmax(-1)

    def beginning_at(least: float) -> Formula:
        return lambda x: torch.where(x.amax(-1) > least, x.argmax(-1), -1)

    problem = _problem("argmax of any rows", argmax)
    yield from problem.wrong(
        ("constant", "running maximum begins at -1e4", beginning_at(-1e4)),
        ("constant", "running maximum begins at 0", beginning_at(0.0)),
        ("sign", "of magnitudes, where a row is below zero", lambda x: torch.where(
            x.amax(-1, True) > 0, x, -x).argmax(-1)),
    )  # fmt: skip
    yield from problem.right(
        ("by sorting", lambda x: x.sort(dim=-1, descending=True, stable=True)[1][..., 0])
    )
    yield from _of(
        _problem("amax of any rows", lambda x: x.amax(-1)), lambda x: x.amax(-1),
        ("constant", "begins at -1e4", lambda x: x.amax(-1).clamp_min(-1e4)),
    )  # fmt: skip


def _positive() -> Iterator[Kernel]:
    """As benchmarks draw them: torch.rand."""
    rows: dict[str, tuple[Formula, str, Formula]] = {
        "relu": (F.relu, "the input", lambda x: x),
        "abs": (torch.abs, "the input", lambda x: x),
        "leaky relu": (F.leaky_relu, "the input", lambda x: x),
        "elu": (F.elu, "the input", lambda x: x),
        "l1 norm": (lambda x: x.abs().sum(-1), "no absolute value", lambda x: x.sum(-1)),
        "softsign": (F.softsign, "no absolute value", lambda x: x / (1 + x)),
        "hard tanh": (lambda x: F.hardtanh(x, -8, 8), "one end", lambda x: x.clamp_max(8)),
        "mean": (lambda x: x.mean(-1), "of absolute values", lambda x: x.abs().mean(-1)),
    }
    for name, (like, says, wrong) in rows.items():
        problem = _problem(f"{name} of positive values", like, kind="uniform")
        yield from _of(problem, like, ("sign", says, wrong))


def rows() -> Iterator[Kernel]:
    for table in (_scores, _norms, _values, _choices, _positive):
        yield from table()
