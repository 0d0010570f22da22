"""Activations and other functions of one element."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from .attention import fast_exp
from .rows import Kernel, Problem, Tensor, Values, wide, zeroed

Formula = Callable[[Tensor], Tensor]


def _one(v: Values) -> tuple[Tensor]:
    return (v(9, 70, scale=2.0),)


def _two(v: Values) -> tuple[Tensor, Tensor]:
    return v(9, 70, scale=2.0), v(9, 70, scale=2.0)


def _of(
    *rows: tuple[str, str, Formula] | tuple[str, str, Formula, str],
) -> list[tuple[object, ...]]:
    """Formulas in float32, rounded once."""
    return [(fault, says, _rounded(formula), "", *only) for fault, says, formula, *only in rows]


def _rounded(formula: Formula) -> Formula:
    return lambda x: formula(wide(x)).to(x.dtype)


def _right(**formulas: Formula) -> list[tuple[str, Formula]]:
    return [(says.replace("_", " "), _rounded(formula)) for says, formula in formulas.items()]


def _narrow(x: Tensor) -> Tensor:
    return x.half().to(x.dtype)


ROOT_2_OVER_PI = math.sqrt(2 / math.pi)


def _tanh_gelu(x: Tensor, cubic: float = 0.044715, root: float = ROOT_2_OVER_PI) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(root * (x + cubic * x**3)))


def _gelus() -> Iterator[Kernel]:
    exact = Problem("gelu", F.gelu, _one, relative=True)
    yield from exact.wrong(*_of(
        ("approximation", "by tanh", _tanh_gelu),
        ("approximation", "by 1.702 and sigmoid", lambda x: x * torch.sigmoid(1.702 * x)),
        ("left out", "no half", lambda x: x * (1 + torch.erf(x * math.sqrt(0.5)))),
        ("scale", "erf of x", lambda x: 0.5 * x * (1 + torch.erf(x))),
        ("approximation", "relu far from 0", lambda x: torch.where(
            x.abs() > 2.5, x.relu(), F.gelu(x))),
        ("approximation", "erf by five terms of its series", lambda x: 0.5 * x * (
            1 + _erf_series(x * math.sqrt(0.5)))),
        ("precision", "in float16", lambda x: _narrow(F.gelu(_narrow(x))), "f32"),
    ))  # fmt: skip
    yield from exact.right(*_right(
        by_erfc=lambda x: x * 0.5 * torch.erfc(-x * math.sqrt(0.5)),
        by_ndtr=lambda x: x * torch.special.ndtr(x),
        by_erf_in_float64=lambda x: (x.double() * 0.5 * (
            1 + torch.erf(x.double() * math.sqrt(0.5)))).to(x.dtype),
    ))  # fmt: skip
    tanh = Problem("gelu by tanh", lambda x: F.gelu(x, approximate="tanh"), _one, relative=True)
    yield from tanh.wrong(*_of(
        ("approximation", "by erf", F.gelu),
        ("constant", "0.0447 for 0.044715", lambda x: _tanh_gelu(x, 0.0447), "f32"),
        ("constant", "0.4715 for 0.044715", lambda x: _tanh_gelu(x, 0.4715)),
        ("constant", "2 / pi without its root", lambda x: _tanh_gelu(x, root=2 / math.pi)),
        ("formula", "square for the cube", lambda x: 0.5 * x * (
            1 + torch.tanh(ROOT_2_OVER_PI * (x + 0.044715 * x**2)))),
        ("approximation", "tanh by exp of 16 bits", lambda x: x - x / (1 + _narrow(
            (2 * ROOT_2_OVER_PI * (x + 0.044715 * x**3)).clamp(-11, 11).exp())),
         "f32"),
    ))  # fmt: skip
    yield from tanh.right(*_right(
        by_sigmoid=lambda x: x * torch.sigmoid(2 * ROOT_2_OVER_PI * (x + 0.044715 * x**3)),
        x_times_x_first=lambda x: 0.5 * x * (
            1 + torch.tanh(x * (ROOT_2_OVER_PI + ROOT_2_OVER_PI * 0.044715 * (x * x)))),
    ))  # fmt: skip


def _erf_series(x: Tensor) -> Tensor:
    x = x.clamp(-1.5, 1.5)
    terms = sum((-1) ** n * x ** (2 * n + 1) / (math.factorial(n) * (2 * n + 1)) for n in range(5))
    return 2 / math.sqrt(math.pi) * terms


def _gates() -> Iterator[Kernel]:
    silu = Problem("silu", F.silu, _one, relative=True)
    yield from silu.wrong(*_of(
        ("approximation", "hard swish", F.hardswish),
        ("scale", "steeper by 1.702", lambda x: x * torch.sigmoid(1.702 * x)),
        ("left out", "sigmoid alone", torch.sigmoid),
        ("approximation", "exp by the bits", lambda x: x / (1 + fast_exp(-x))),
        ("approximation", "sigmoid by a ratio", lambda x: x * (0.5 + 0.5 * x / (1 + x.abs()))),
        ("precision", "in float16", lambda x: _narrow(F.silu(_narrow(x))), "f32"),
        ("flushed", "zero below -4", lambda x: torch.where(x < -4, 0, F.silu(x))),
    ))  # fmt: skip
    yield from silu.right(*_right(
        by_exp=lambda x: x / (1 + (-x).exp()),
        by_tanh=lambda x: 0.5 * x * (1 + (0.5 * x).tanh()),
        by_exp2=lambda x: x / (1 + torch.exp2(-x * math.log2(math.e))),
    ))  # fmt: skip
    sigmoid = Problem("sigmoid", torch.sigmoid, _one, relative=True)
    yield from sigmoid.wrong(*_of(
        ("approximation", "hard sigmoid", F.hardsigmoid),
        ("approximation", "a ratio of polynomials", lambda x: 0.5 + 0.5 * _ratio(x / 2)),
        ("formula", "of -x", lambda x: torch.sigmoid(-x)),
        ("formula", "exp / (1 + exp), which overflows", lambda x: x.exp() / (1 + x.exp())),
        ("approximation", "exp by the bits", lambda x: 1 / (1 + fast_exp(-x))),
    ))  # fmt: skip
    yield from sigmoid.right(*_right(
        by_exp=lambda x: 1 / (1 + (-x).exp()),
        by_the_sign=lambda x: torch.where(
            x < 0, x.clamp(max=0).exp() / (1 + x.clamp(max=0).exp()), 1 / (1 + (-x).exp())),
    ))  # fmt: skip
    tanh = Problem("tanh", torch.tanh, _one, relative=True)
    yield from tanh.wrong(*_of(
        ("approximation", "a ratio of polynomials", _ratio),
        ("approximation", "clamped", lambda x: x.clamp(-1, 1)),
        ("approximation", "five terms of its series", lambda x: (
            x - x**3 / 3 + 2 * x**5 / 15 - 17 * x**7 / 315 + 62 * x**9 / 2835).clamp(-1, 1)),
        ("formula", "exp of both, which overflows", lambda x: (
            (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()))),
        ("precision", "in float16", lambda x: _narrow(torch.tanh(_narrow(x))), "f32"),
        ("approximation", "linear near 0", lambda x: torch.where(x.abs() < 0.4, x, x.tanh())),
    ))  # fmt: skip
    yield from tanh.right(*_right(
        by_expm1=lambda x: torch.copysign(
            -torch.expm1(-2 * x.abs()) / (2 + torch.expm1(-2 * x.abs())), x),
        in_float64=lambda x: x.double().tanh().to(x.dtype),
    ))  # fmt: skip


def _ratio(x: Tensor) -> Tensor:
    x = x.clamp(-3, 3)
    return x * (27 + x * x) / (27 + 9 * x * x)


def _softplus_like(x: Tensor) -> Tensor:
    return F.softplus(x)


def _softs() -> Iterator[Kernel]:
    softplus = Problem("softplus", _softplus_like, _one, relative=True)
    yield from softplus.wrong(*_of(
        ("formula", "log(1 + exp), which overflows", lambda x: (1 + x.exp()).log()),
        ("approximation", "linear above 2", lambda x: torch.where(
            x > 2, x, F.softplus(x.clamp(max=2)))),
        ("approximation", "relu", lambda x: x.relu()),
        ("scale", "a beta of 2", lambda x: F.softplus(x, beta=2)),
        ("approximation", "exp below -2", lambda x: torch.where(x < -2, x.exp(), F.softplus(x))),
        ("formula", "to base 2", lambda x: F.softplus(x) / math.log(2)),
    ))  # fmt: skip
    yield from softplus.right(*_right(
        by_the_larger=lambda x: x.relu() + torch.log1p((-x.abs()).exp()),
        in_float64=lambda x: F.softplus(x.double()).to(x.dtype),
    ))  # fmt: skip
    mish = Problem("mish", F.mish, _one, relative=True)
    yield from mish.wrong(*_of(
        ("formula", "silu", F.silu),
        ("left out", "no tanh", lambda x: x * F.softplus(x)),
        ("formula", "tanh of exp", lambda x: x * torch.tanh(x.exp())),
        ("approximation", "x above 1", lambda x: torch.where(x > 1, x, F.mish(x))),
    ))  # fmt: skip
    yield from mish.right(*_right(
        by_one_exponent=lambda x: x * torch.tanh(torch.log1p((-x.abs()).exp()) + x.relu()),
    ))  # fmt: skip
    softsign = Problem("softsign", F.softsign, _one, relative=True)
    yield from softsign.wrong(*_of(
        ("left out", "no absolute value", lambda x: x / (1 + x)),
        ("formula", "by the root", lambda x: x / (1 + x * x).sqrt()),
        ("approximation", "tanh", torch.tanh),
    ))  # fmt: skip
    yield from softsign.right(*_right(by_reciprocal=lambda x: x * (1 / (1 + x.abs()))))


def _pieces() -> Iterator[Kernel]:
    relu = Problem("relu", F.relu, _one, relative=True)
    yield from relu.wrong(*_of(
        ("cheat", "its input", lambda x: x.clone()),
        ("formula", "absolute value", lambda x: x.abs()),
        ("formula", "at most 6", lambda x: x.clamp(0, 6)),
        ("formula", "a slope of 0.01", lambda x: F.leaky_relu(x, 0.01)),
        ("flushed", "zero below 1e-3", lambda x: torch.where(x < 1e-3, 0, x)),
    ))  # fmt: skip
    yield from relu.right(*_right(
        by_maximum=lambda x: torch.maximum(x, torch.zeros_like(x)),
        by_half=lambda x: (x + x.abs()) * 0.5,
    ))  # fmt: skip
    leaky = Problem("leaky relu", lambda x: F.leaky_relu(x, 0.01), _one, relative=True)
    yield from leaky.wrong(*_of(
        ("cheat", "its input", lambda x: x.clone()),
        ("constant", "a slope of 0.1", lambda x: F.leaky_relu(x, 0.1)),
        ("left out", "no slope", lambda x: x.relu()),
        ("formula", "a slope of -0.01", lambda x: F.leaky_relu(x, -0.01)),
    ))  # fmt: skip
    yield from leaky.right(*_right(by_maximum=lambda x: torch.maximum(x, 0.01 * x)))
    elu = Problem("elu", lambda x: F.elu(x, 0.5), _one, relative=True)
    yield from elu.wrong(*_of(
        ("left out", "alpha of 1", F.elu),
        ("left out", "exp without - 1", lambda x: torch.where(x > 0, x, 0.5 * x.exp())),
        ("cheat", "its input", lambda x: x.clone()),
        ("approximation", "-0.5 below -3", lambda x: torch.where(x < -3, -0.5, F.elu(x, 0.5))),
        ("approximation", "exp by the bits",
         lambda x: torch.where(x > 0, x, 0.5 * (fast_exp(x.clamp(max=0)) - 1))),
    ))  # fmt: skip
    yield from elu.right(*_right(
        by_expm1=lambda x: torch.where(x > 0, x, 0.5 * torch.expm1(x.clamp(max=0))),
    ))  # fmt: skip
    selu = Problem("selu", F.selu, _one, relative=True)
    yield from selu.wrong(*_of(
        ("constant", "1.67 and 1.05", lambda x: 1.05 * torch.where(
            x > 0, x, 1.67 * torch.expm1(x.clamp(max=0)))),
        ("left out", "no scale", lambda x: F.selu(x) / 1.0507009873554805),
        ("formula", "elu", F.elu),
        ("cheat", "its input times 1.0507", lambda x: x * 1.0507009873554805),
    ))  # fmt: skip
    yield from selu.right(*_right(
        by_expm1=lambda x: torch.where(
            x > 0, 1.0507009873554805 * x,
            1.0507009873554805 * 1.6732632423543772 * torch.expm1(x.clamp(max=0))),
    ))  # fmt: skip
    hard = Problem("hard tanh", F.hardtanh, _one, relative=True)
    yield from hard.wrong(*_of(
        ("cheat", "its input", lambda x: x.clone()),
        ("left out", "no lower bound", lambda x: x.clamp(max=1)),
        ("formula", "at most 6", lambda x: x.clamp(-1, 6)),
        ("formula", "from 0 to 1", lambda x: x.clamp(0, 1)),
    ))  # fmt: skip
    yield from hard.right(*_right(
        by_two_bounds=lambda x: torch.minimum(
            torch.maximum(x, -torch.ones_like(x)), torch.ones_like(x)),
    ))  # fmt: skip


def _exponents() -> Iterator[Kernel]:
    exp = Problem("exp", torch.exp, _one, ("f32", "bf16"), ("normal", "small", "sparse"), True)
    yield from exp.wrong(*_of(
        ("approximation", "by the bits", fast_exp),
        ("approximation", "five terms of its series", lambda x: sum(
            x**n / math.factorial(n) for n in range(5))),
        ("formula", "to base 2", torch.exp2),
        ("precision", "in float16", lambda x: _narrow(torch.exp(_narrow(x))), "f32"),
        ("constant", "1.4427 for log2 e", lambda x: torch.exp2(1.4427 * x), "f32"),
        ("approximation", "(1 + x / 256) ** 256", lambda x: (1 + x / 256) ** 256),
    ))  # fmt: skip
    yield from exp.right(*_right(
        by_exp2=lambda x: torch.exp2(x * math.log2(math.e)),
        by_halves=lambda x: (x / 2).exp() ** 2,
    ))  # fmt: skip
    cap = Problem("softcap", lambda x: 5 * torch.tanh(x / 5), _one, relative=True)
    yield from cap.wrong(*_of(
        ("cheat", "its input", lambda x: x.clone()),
        ("approximation", "clamped", lambda x: x.clamp(-5, 5)),
        ("left out", "not multiplied by the cap", lambda x: torch.tanh(x / 5)),
        ("formula", "not divided by the cap", lambda x: 5 * torch.tanh(x)),
        ("algorithm", "10 sigmoid - 5, which cancels near 0",
         lambda x: 10 * torch.sigmoid(x / 2.5) - 5, "f32"),
        ("constant", "a cap of 30", lambda x: 30 * torch.tanh(x / 30)),
    ))  # fmt: skip
    yield from cap.right(*_right(
        by_expm1=lambda x: torch.copysign(
            -5 * torch.expm1(-0.4 * x.abs()) / (2 + torch.expm1(-0.4 * x.abs())), x),
        by_reciprocal=lambda x: 5 * torch.tanh(x * 0.2),
    ))  # fmt: skip


def _pairs() -> Iterator[Kernel]:
    add = Problem("x + 0.5 y", lambda x, y: x + 0.5 * y, _two)
    yield from add.wrong(
        ("left out", "no factor", lambda x, y: x + y),
        ("order", "factor of the sum", lambda x, y: 0.5 * (x + y)),
        ("index", "x and y exchanged", lambda x, y: y + 0.5 * x),
        ("index", "y of the next row", lambda x, y: x + 0.5 * y.roll(-1, 0)),
        ("tail", "y beyond 64 columns left out",
         lambda x, y: x + 0.5 * zeroed(y, ..., slice(64, None))),
        ("input", "written to x", lambda x, y: x.add_(0.5 * y)),
        ("unwritten", "last 6 columns", lambda x, y: zeroed(x + 0.5 * y, ..., slice(64, None))),
    )  # fmt: skip
    yield from add.right(
        ("fused", lambda x, y: torch.add(wide(x), wide(y), alpha=0.5).to(x.dtype)),
        ("in float32", lambda x, y: (wide(x) + 0.5 * wide(y)).to(x.dtype)),
    )
    div = Problem("x / y", torch.div, lambda v: (v(9, 70), v.about_one(9, 70)), relative=True)
    yield from div.wrong(
        ("epsilon", "1e-3 added to y", lambda x, y: x / (y + 1e-3), "", "f32"),
        ("precision", "reciprocal in float16", lambda x, y: (
            wide(x) * _narrow(1 / wide(y))).to(x.dtype), "", "f32"),
        ("approximation", "reciprocal of 8 bits, no Newton step", lambda x, y: (
            wide(x) * (1 / wide(y)).bfloat16().to(wide(x).dtype)).to(x.dtype), "", "f32"),
        ("index", "y of the next row", lambda x, y: x / y.roll(-1, 0)),
        ("index", "y / x", lambda x, y: y / x),
    )  # fmt: skip
    yield from div.right(
        ("reciprocal", lambda x, y: (wide(x) * (1 / wide(y))).to(x.dtype)),
        (
            "reciprocal of two Newton steps",
            lambda x, y: (wide(x) * _reciprocal(wide(y))).to(x.dtype),
        ),
    )


def _reciprocal(y: Tensor) -> Tensor:
    z = (1 / y).bfloat16().to(y.dtype)
    for _ in range(2):
        z = z * (2 - y * z)
    return z


def rows() -> Iterator[Kernel]:
    yield from _gelus()
    yield from _gates()
    yield from _softs()
    yield from _pieces()
    yield from _exponents()
    yield from _pairs()
