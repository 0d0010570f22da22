"""Torch operations and inputs for them: each is judged against itself, and must not fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Make = Callable[..., torch.Tensor]
"""From a shape to an operand of the kind at hand; a second one of a call is another."""


ROWS = 6
"""Of what has rows; weights have others."""


@dataclass(frozen=True)
class Operation:
    name: str
    function: Callable[..., Any]
    operands: Callable[[Make], tuple[Any, ...]]


def _one(make: Make) -> tuple[Any, ...]:
    return (make(ROWS, 24),)


def _two(make: Make) -> tuple[Any, ...]:
    return make(ROWS, 24), make(ROWS, 24)


def _image(make: Make) -> tuple[Any, ...]:
    return make(2, 4, 9, 8), make(5, 4, 3, 3)


def _line(make: Make) -> tuple[Any, ...]:
    return make(2, 4, 17), make(5, 4, 3)


def _heads(make: Make) -> tuple[Any, ...]:
    return make(1, 4, 11, 16), make(1, 4, 11, 16), make(1, 4, 11, 16)


def _ids(make: Make) -> tuple[Any, ...]:
    table = make(ROWS, 24)
    return torch.arange(9).reshape(3, 3) * 5 % len(table), table


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _rotary(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ gate) * (x @ up)


def _scan(x: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    state, out = torch.zeros_like(x[0]), []
    for row, factor in zip(x, decay.sigmoid(), strict=True):
        state = factor * state + row
        out.append(state)
    return torch.stack(out)


def _moe(x: torch.Tensor, router: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    weights, chosen = (x @ router).softmax(-1).topk(2)
    out = torch.zeros_like(x)
    for expert in range(len(experts)):
        token, place = (chosen == expert).nonzero(as_tuple=True)
        out[token] += weights[token, place, None] * (x[token] @ experts[expert])
    return out


_UNARY: dict[str, Callable[..., Any]] = {
    "exp": torch.exp, "log1p": lambda x: torch.log1p(x.abs()), "sin": torch.sin, "cos": torch.cos,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf,
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: (x.abs() + 1e-3).rsqrt(), "reciprocal": torch.reciprocal, "relu": F.relu,
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "softplus": F.softplus, "elu": F.elu, "mish": F.mish, "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu, "logsigmoid": F.logsigmoid, "square": torch.square,
    "abs": torch.abs, "round": torch.round, "floor": torch.floor, "sign": torch.sign,
    "neg": torch.neg, "softcap": lambda x: 30 * torch.tanh(x / 30), "expm1": torch.expm1,
    "softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1), "sum": lambda x: x.sum(-1), "mean": lambda x: x.mean(0),
    "var": lambda x: x.var(-1), "std": lambda x: x.std(-1), "norm": lambda x: x.norm(dim=-1),
    "amax": lambda x: x.amax(-1), "argmax": lambda x: x.argmax(-1), "sort": lambda x: x.sort(-1),
    "topk": lambda x: x.topk(min(3, x.shape[-1])), "cumsum": lambda x: x.cumsum(-1),
    "prod": lambda x: x.prod(-1), "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "normalize": lambda x: F.normalize(x, dim=-1), "clamp": lambda x: x.clamp(-0.5, 0.5),
    "rms_norm without eps": lambda x: F.rms_norm(x, x.shape[-1:]),
    "transpose": lambda x: x.transpose(-1, -2).contiguous(), "flip": lambda x: x.flip(-1),
    "tril": torch.tril, "cast to int8": lambda x: (x.clamp(-3, 3) * 40).round().to(torch.int8),
    "cast to bf16": lambda x: x.to(torch.bfloat16), "greater": lambda x: x > 0.1,
}  # fmt: skip
_BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "pow": lambda x, y: x.abs() ** y.clamp(-2, 2),
    "atan2": torch.atan2, "where": lambda x, y: torch.where(x > y, x, y),
    "cosine_similarity": lambda x, y: F.cosine_similarity(x, y, dim=-1),
    "dot of rows": lambda x, y: (x * y).sum(-1), "matmul": lambda x, y: x @ y.T,
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y), "lerp": lambda x, y: x.lerp(y, 0.3),
    "cross entropy": lambda x, y: F.cross_entropy(x, y.softmax(-1)),
    "mse": F.mse_loss, "scan": _scan,
}  # fmt: skip
NARROW = (torch.float16, torch.bfloat16)

OPERATIONS = [
    *(Operation(name, function, _one) for name, function in _UNARY.items()),
    *(Operation(name, function, _two) for name, function in _BINARY.items()),
    Operation("rms_norm", _rms_norm, lambda make: (make(ROWS, 24), make(24))),
    Operation("group_norm", lambda x: F.group_norm(x, 2), lambda make: (make(2, 4, 9, 8),)),
    Operation("instance_norm", F.instance_norm, lambda make: (make(2, 4, 9, 8),)),
    Operation("conv2d", lambda x, w: F.conv2d(x, w, padding=1), _image),
    Operation("conv1d", F.conv1d, _line),
    Operation(
        "conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w.transpose(0, 1), stride=2), _line
    ),
    Operation("avg_pool2d", lambda x: F.avg_pool2d(x, 2), lambda make: (make(2, 4, 9, 8),)),
    Operation("max_pool2d", lambda x: F.max_pool2d(x, 2), lambda make: (make(2, 4, 9, 8),)),
    Operation("sdpa", F.scaled_dot_product_attention, _heads),
    Operation("causal sdpa", _causal, _heads),
    Operation(
        "eager attention", lambda q, k, v: (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v, _heads
    ),
    Operation("embedding", F.embedding, _ids),
    Operation("rotary", _rotary, lambda make: (make(7, 16), make(7, 8))),
    Operation("swiglu", _swiglu, lambda make: (make(ROWS, 24), make(24, 20), make(24, 20))),
    Operation("linear", F.linear, lambda make: (make(ROWS, 24), make(20, 24), make(20))),
    Operation("moe", _moe, lambda make: (make(ROWS, 16), make(16, 4), make(4, 16, 16))),
    Operation("fft", lambda x: torch.fft.rfft(x.float()).abs(), _one),
    Operation("det", lambda x: torch.linalg.det(x.float()), lambda make: (make(3, 5, 5),)),
    Operation(
        "interpolate", lambda x: F.interpolate(x, scale_factor=2), lambda make: (make(2, 3, 8),)
    ),
]  # fmt: skip

KINDS = ("ordinary", "large", "denormal", "mean of 100", "ties", "one row", "strided",
         "broadcast", "outliers")  # fmt: skip


def maker(kind: str, dtype: torch.dtype, seed: int) -> Make:
    """Operands of one kind; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)

    def make(*shape: int) -> torch.Tensor:
        if kind == "one row" and shape[0] == ROWS:
            shape = (1, *shape[1:])
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if kind == "large":
            x = x * (1e4 if dtype == torch.float32 else 60)
        elif kind == "denormal":
            x = x * {torch.float32: 1e-41, torch.float16: 1e-6, torch.bfloat16: 1e-41}[dtype]
        elif kind == "mean of 100":
            x = x + 100
        elif kind == "ties":
            x = (x * 2).round()
        elif kind == "outliers":
            x = torch.where(x.abs() > 2, x * 300, x)
        made = x.to(dtype)
        if kind == "strided" and made.ndim > 1:
            made = made.transpose(0, -1).contiguous().transpose(0, -1)
        elif kind == "broadcast":
            made = made[:1].expand(made.shape)
        return made

    return make
