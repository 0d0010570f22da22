"""Products with quantised weights, adapters and gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from .attention import fast_exp
from .rows import Kernel, Problem, Tensor, Values, wide, zeroed
from .sums import SUMS


def _int8_like(x: Tensor, codes: Tensor, scales: Tensor, zero: Tensor) -> Tensor:
    """Groups of 16 columns have a scale and a zero point each."""
    off = (codes.to(x.dtype) - 128).unflatten(1, (-1, 16)) - zero[..., None]
    return x @ (off * scales[..., None]).flatten(1).T


def _int8_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        scales = v.about_one(24, 4).abs() / 64
        return v(9, 64), v.below(256, 24, 64), scales, v.below(9, 24, 4).to(v.dtype)

    problem = Problem("linear of 8-bit codes", _int8_like, operands, dtypes=("f32",))
    like = _int8_like
    yield from problem.wrong(
        ("left out", "no zero point", lambda x, c, s, z: like(x, c, s, torch.zeros_like(z))),
        ("index", "scale of the next group", lambda x, c, s, z: like(x, c, s.roll(-1, 1), z)),
        ("constant", "one scale for a row", lambda x, c, s, z: like(
            x, c, s[:, :1].expand(24, 4), z), "sgl-project/sglang#33245"),
        ("formula", "codes as signed", lambda x, c, s, z: like(x, (c + 128) % 256, s, z)),
        ("precision", "dequantised to bfloat16", lambda x, c, s, z: like(
            x, c, s.bfloat16().to(s.dtype), z)),
        ("order", "zero point after the scale", lambda x, c, s, z: x @ (
            (c.to(x.dtype) - 128).unflatten(1, (-1, 16)) * s[..., None] - z[..., None]
        ).flatten(1).T),
        ("tail", "last group not read", lambda x, c, s, z: like(x, c, zeroed(s, ..., -1), z),
         "ml-explore/mlx#3854"),
    )  # fmt: skip
    yield from problem.right(
        ("scales after the sums of groups", lambda x, c, s, z: sum(
            (x[:, 16 * g : 16 * g + 16] @ (c[:, 16 * g : 16 * g + 16].to(x.dtype) - 128
             - z[:, g, None]).T) * s[:, g] for g in range(4))),
        ("zero points apart", lambda x, c, s, z: sum(
            (x[:, 16 * g : 16 * g + 16] @ (c[:, 16 * g : 16 * g + 16].to(x.dtype) - 128).T
             - x[:, 16 * g : 16 * g + 16].sum(1, keepdim=True) * z[:, g]) * s[:, g]
            for g in range(4))),
    )  # fmt: skip


def _unpacked(codes: Tensor, high_first: bool = False, offset: int = 8) -> Tensor:
    low, high = codes % 16 - offset, codes // 16 - offset
    return torch.stack([high, low] if high_first else [low, high], -1).flatten(1)


def _int4_like(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """A byte has two codes, the lower half first; groups of 16."""
    grouped = _unpacked(codes).to(x.dtype).unflatten(1, (-1, 16))
    return x @ (grouped * scales[..., None]).flatten(1).T


def _int4_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        return v(9, 64), v.below(256, 24, 32), v.about_one(24, 4).abs() / 8

    def other(unpack: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        return lambda x, c, s: (
            x @ (unpack(c).to(x.dtype).unflatten(1, (-1, 16)) * s[..., None]).flatten(1).T
        )

    problem = Problem("linear of 4-bit codes", _int4_like, operands, dtypes=("f32",))
    yield from problem.wrong(
        ("index", "upper half first", other(lambda c: _unpacked(c, True)),
         "sgl-project/sglang#23625"),
        ("left out", "no offset", other(lambda c: _unpacked(c, offset=0))),
        ("constant", "offset of 7", other(lambda c: _unpacked(c, offset=7))),
        ("index", "lower half for both", other(lambda c: _unpacked(c % 16 * 17))),
        ("constant", "groups of 32", lambda x, c, s: _int4_like(
            x, c, s[:, [0, 0, 2, 2]])),
        ("index", "scale of the row before", lambda x, c, s: _int4_like(x, c, s.roll(1, 0))),
    )  # fmt: skip
    yield from problem.right(
        ("halves apart", lambda x, c, s: (
            x[:, ::2] @ ((c % 16 - 8).to(x.dtype).unflatten(1, (4, 8)) * s[..., None]).flatten(1).T
            + x[:, 1::2] @ ((c // 16 - 8).to(x.dtype).unflatten(1, (4, 8))
                            * s[..., None]).flatten(1).T)),
    )  # fmt: skip


def _adapter_like(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ w.T + (x @ a.T @ b.T) * 2.0


def _adapter_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        return v(9, 48), v.weight(48, 48), v.weight(8, 48), v.weight(48, 8)

    problem = Problem("linear with an adapter", _adapter_like, operands)
    like = _adapter_like
    yield from problem.wrong(
        ("left out", "no adapter", lambda x, w, a, b: x @ w.T),
        ("left out", "no scale of the adapter", lambda x, w, a, b: like(x, w, a, b / 2)),
        ("scale", "alpha for alpha / rank", lambda x, w, a, b: like(x, w, a, b * 8)),
        ("tail", "half of the rank", lambda x, w, a, b: like(x, w, a[:4], b[:, :4]),
         "sgl-project/sglang#21864"),
        ("order", "adapter of the result", lambda x, w, a, b: (
            x @ w.T + x @ w.T @ a.T @ b.T * 2)),
    )  # fmt: skip
    yield from problem.right(
        ("adapter merged in float32", lambda x, w, a, b: (
            wide(x) @ (wide(w) + 2 * wide(b) @ wide(a)).T).to(x.dtype)),
        ("float32 throughout", lambda x, w, a, b: like(*map(wide, (x, w, a, b))).to(x.dtype)),
    )  # fmt: skip


def swiglu_like(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(x @ gate) * (x @ up)


def _swiglu(logistic: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def kernel(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        g, u = wide(x) @ wide(gate), wide(x) @ wide(up)
        return (g * logistic(g) * u).to(x.dtype)

    return kernel


LOGISTIC: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "exp": lambda x: 1 / (1 + (-x).exp()),
    "tanh": lambda x: 0.5 * (1 + (0.5 * x).tanh()),
    "exp2": lambda x: 1 / (1 + torch.exp2(-x * 1.4426950408889634)),
}


def _swiglu_rows() -> Iterator[Kernel]:
    problem = Problem(
        "swiglu", swiglu_like, lambda v: (v(9, 40), v.weight(40, 24) * 6, v.weight(40, 24) * 6)
    )
    yield from problem.wrong(
        ("index", "gate and up exchanged", lambda x, g, u: swiglu_like(x, u, g)),
        ("formula", "gelu for silu", lambda x, g, u: F.gelu(x @ g) * (x @ u)),
        ("formula", "sigmoid for silu", lambda x, g, u: torch.sigmoid(x @ g) * (x @ u)),
        ("left out", "no gate", lambda x, g, u: x @ u),
        ("left out", "no up", lambda x, g, u: F.silu(x @ g)),
        ("index", "gate of the next channel",
         lambda x, g, u: F.silu(x @ g).roll(1, -1) * (x @ u)),
        ("approximation", "quick gelu for silu",
         lambda x, g, u: (x @ g) * torch.sigmoid(1.702 * (x @ g)) * (x @ u)),
        ("approximation", "hard swish for silu", lambda x, g, u: F.hardswish(x @ g) * (x @ u)),
        ("order", "silu of the product", lambda x, g, u: F.silu((x @ g) * (x @ u))),
        ("formula", "a gate of at most 7", lambda x, g, u: (
            F.silu((x @ g).clamp(max=7)) * (x @ u))),
        ("approximation", "exp by the bits", _swiglu(lambda g: 1 / (1 + fast_exp(-g)))),
        ("precision", "products rounded to bfloat16", lambda x, g, u: (
            F.silu(wide((x @ g).bfloat16())) * wide((x @ u).bfloat16())).to(x.dtype), "", "f32"),
        ("index", "halves interleaved", lambda x, g, u: _interleaved(x, g, u)),
    )  # fmt: skip
    for way, logistic in LOGISTIC.items():
        yield from problem.right((way, _swiglu(logistic)))
    yield from problem.right(
        ("sums by pairs", lambda x, g, u: (
            F.silu(SUMS["pairs"](wide(x)[:, None] * wide(g).T))
            * SUMS["pairs"](wide(x)[:, None] * wide(u).T)).to(x.dtype)),
    )  # fmt: skip


def _interleaved(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    both = torch.cat([x @ gate, x @ up], -1)
    return F.silu(both[:, ::2]) * both[:, 1::2]


def rows() -> Iterator[Kernel]:
    yield from _int8_rows()
    yield from _int4_rows()
    yield from _adapter_rows()
    yield from _swiglu_rows()
