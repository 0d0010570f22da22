"""Right kernels of unusual arithmetic: every way to compute an operation that a port may take.

A kernel computes in float32 or wider and rounds once to what it stores, or where torch's own code
does. None may fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Tensor = torch.Tensor


@dataclass(frozen=True)
class Right:
    name: str
    kernel: Callable[..., Any]
    like: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    spread: float = 1.0
    """Of the operands."""


# Sums in other orders, of the last axis of float32.


def _reversed(x: Tensor) -> Tensor:
    return x.flip(-1).sum(-1)


def _pairs(x: Tensor) -> Tensor:
    while x.shape[-1] > 1:
        x = F.pad(x, (0, x.shape[-1] % 2))
        x = x[..., ::2] + x[..., 1::2]
    return x[..., 0]


def _one_by_one(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[..., 0])
    for i in range(x.shape[-1]):
        total = total + x[..., i]
    return total


def _split(x: Tensor) -> Tensor:
    """Every fourth term to one of four sums, as threads do."""
    return torch.stack([x[..., i::4].sum(-1) for i in range(4)]).sum(0)


def _compensated(x: Tensor) -> Tensor:
    total, lost = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
    for i in range(x.shape[-1]):
        y = x[..., i] - lost
        new = total + y
        lost, total = (new - total) - y, new
    return total


def _wide(x: Tensor) -> Tensor:
    return x.double().sum(-1).float()


SUMS = {"reversed": _reversed, "pairs": _pairs, "one by one": _one_by_one, "split": _split,
        "compensated": _compensated, "float64": _wide}  # fmt: skip


def _newton_rsqrt(x: Tensor) -> Tensor:
    y = x.rsqrt() * (1 + 1e-4)
    for _ in range(2):
        y = y * (1.5 - 0.5 * x * y * y)
    return y


ROOTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rsqrt": torch.rsqrt, "1 / sqrt": lambda x: 1 / x.sqrt(), "newton": _newton_rsqrt
}  # fmt: skip


def rms_norm_like(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def _rms_norm(
    total: Callable[[Tensor], Tensor], root: Callable[[Tensor], Tensor], eager: bool
) -> Any:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        wide = x.float()
        n = wide * root(total(wide * wide)[..., None] / x.shape[-1] + 1e-5)
        return w * n.to(x.dtype) if eager else (w.float() * n).to(x.dtype)

    return kernel


def layer_norm_like(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def _layer_norm(total: Callable[[Tensor], Tensor], root: Callable[[Tensor], Tensor]) -> Any:
    def kernel(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        wide = x.float()
        off = wide - total(wide)[..., None] / x.shape[-1]
        n = off * root(total(off * off)[..., None] / x.shape[-1] + 1e-5)
        return (n * w.float() + b.float()).to(x.dtype)

    return kernel


def _softmax(total: Callable[[Tensor], Tensor], base2: bool, reciprocal: bool) -> Any:
    def kernel(x: Tensor) -> Tensor:
        wide = x.float()
        off = wide - wide.amax(-1, keepdim=True)
        e = torch.exp2(off * math.log2(math.e)) if base2 else off.exp()
        s = total(e)[..., None]
        return (e * (1 / s) if reciprocal else e / s).to(x.dtype)

    return kernel


def _matmul(total: Callable[[Tensor], Tensor]) -> Any:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return total(a.float()[:, None, :] * b.float().T[None]).to(a.dtype)

    return kernel


def attention_like(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


def _flash(block: int, base2: bool, narrow: bool) -> Any:
    """Keys in blocks, with a running maximum; `narrow`: weights are rounded to 16 bits."""

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys = q.shape[-2], k.shape[-2]
        power = torch.exp2 if base2 else torch.exp
        scale = q.shape[-1] ** -0.5 * (math.log2(math.e) if base2 else 1)
        most = q.new_full((*q.shape[:-1], 1), -1e30, dtype=torch.float32)
        total, out = torch.zeros_like(most), torch.zeros_like(q, dtype=torch.float32)
        for at in range(0, keys, block):
            scores = q.float() @ k[..., at : at + block, :].float().transpose(-1, -2) * scale
            column = torch.arange(at, min(at + block, keys))
            scores = scores.masked_fill(column > torch.arange(rows)[:, None], -torch.inf)
            new = torch.maximum(most, scores.amax(-1, keepdim=True))
            p, old = power(scores - new), power(most - new)
            total = total * old + p.sum(-1, keepdim=True)
            p = p.to(v.dtype).float() if narrow else p
            out, most = out * old + p @ v[..., at : at + block, :].float(), new
        return (out / total).to(q.dtype)

    return kernel


def swiglu_like(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(x @ gate) * (x @ up)


def _swiglu(logistic: Callable[[Tensor], Tensor]) -> Any:
    def kernel(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        g, u = x.float() @ gate.float(), x.float() @ up.float()
        return (g * logistic(g) * u).to(x.dtype)

    return kernel


LOGISTIC = {"sigmoid": torch.sigmoid, "exp": lambda x: 1 / (1 + (-x).exp()),
            "tanh": lambda x: 0.5 * (1 + (0.5 * x).tanh()),
            "exp2": lambda x: 1 / (1 + torch.exp2(-x * math.log2(math.e)))}  # fmt: skip


def _gelu_by_erfc(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * 0.5 * torch.erfc(-wide * math.sqrt(0.5))).to(x.dtype)


def _group_norm(x: Tensor) -> Tensor:
    wide = x.float().reshape(x.shape[0], 2, -1)
    off = wide - wide.mean(-1, keepdim=True)
    return (off / (off.square().mean(-1, keepdim=True) + 1e-5).sqrt()).reshape(x.shape).to(x.dtype)


def _conv_by_gemm(x: Tensor, w: Tensor) -> Tensor:
    columns = F.unfold(x.float()[:, :, None], (1, w.shape[-1]))
    return (w.float().flatten(1) @ columns).to(x.dtype)


def rotary_like(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    cos, sin = angles.float().cos(), angles.float().sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def _rotary_by_complex(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles.float()), angles.float())
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


def _cumsum_in_blocks(x: Tensor) -> Tensor:
    parts, before = [], torch.zeros_like(x[..., :1], dtype=torch.float32)
    for part in x.float().split(7, -1):
        parts.append(part.cumsum(-1) + before)
        before = parts[-1][..., -1:]
    return torch.cat(parts, -1).to(x.dtype)


def _logsumexp(x: Tensor) -> Tensor:
    wide = x.float()
    most = wide.amax(-1, keepdim=True)
    return ((wide - most).exp().sum(-1).log() + most[..., 0]).to(x.dtype)


def right_kernels() -> Iterator[Right]:
    for way, total in SUMS.items():
        for root, function in ROOTS.items():
            for eager in (False, True):
                name = f"rms_norm {way}, {root}{', eager' if eager else ''}"
                yield Right(
                    name, _rms_norm(total, function, eager), rms_norm_like, ((9, 70), (70,))
                )
            shapes = ((9, 70), (70,), (70,))
            yield Right(
                f"layer_norm {way}, {root}", _layer_norm(total, function), layer_norm_like, shapes
            )
        for base2, reciprocal in ((False, False), (True, False), (True, True)):
            name = f"softmax {way}{', base 2' * base2}{', reciprocal' * reciprocal}"
            kernel = _softmax(total, base2, reciprocal)
            yield Right(name, kernel, lambda x: x.softmax(-1), ((9, 70),), 3)
        yield Right(f"matmul {way}", _matmul(total), torch.matmul, ((9, 70), (70, 20)))
    for block in (1, 5, 16, 64):
        for base2 in (False, True):
            for narrow in (False, True):
                said = ", base 2" * base2 + ", p in 16 bits" * narrow
                kernel = _flash(block, base2, narrow)
                name = f"attention in blocks of {block}{said}"
                yield Right(name, kernel, attention_like, ((1, 2, 21, 16),) * 3)
    for way, logistic in LOGISTIC.items():
        yield Right(f"swiglu {way}", _swiglu(logistic), swiglu_like, ((9, 40), (40, 24), (40, 24)))
    yield Right("gelu by erfc", _gelu_by_erfc, F.gelu, ((9, 70),), 2)
    yield Right(
        "group_norm in two passes", _group_norm, lambda x: F.group_norm(x, 2), ((3, 4, 6, 5),)
    )
    yield Right("conv1d by gemm", _conv_by_gemm, F.conv1d, ((2, 5, 23), (7, 5, 3)))
    yield Right("rotary by complex numbers", _rotary_by_complex, rotary_like, ((9, 32), (9, 16)))
    yield Right("cumsum in blocks", _cumsum_in_blocks, lambda x: x.cumsum(-1), ((5, 40),))
    yield Right("logsumexp", _logsumexp, lambda x: x.logsumexp(-1), ((9, 70),), 3)
