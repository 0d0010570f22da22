"""Wrong kernels: faults of structure, of the kinds that public reports name. Each must fail.

Operands are drawn; where a fault shows on some operands alone, they are drawn so that it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from tests.panel.right_kernels import (
    attention_like,
    layer_norm_like,
    rms_norm_like,
    rotary_like,
    swiglu_like,
)

Tensor = torch.Tensor
Shapes = tuple[tuple[int, ...], ...]
Kernels = dict[str, Callable[..., Any]]


@dataclass(frozen=True)
class Wrong:
    name: str
    kernel: Callable[..., Any]
    like: Callable[..., Any]
    shapes: Shapes
    spread: float = 1.0


def _zeroed(y: Tensor, *place: Any) -> Tensor:
    y = y.clone()
    y[place] = 0
    return y


def _without_small(y: Tensor) -> Tensor:
    """The four smallest are zero, however large a seed makes those."""
    least = y.abs().flatten().kthvalue(5).values
    return torch.where(y.abs() < least, 0, y)


def _swapped(y: Tensor, a: int, b: int, axis: int = -1) -> Tensor:
    order = list(range(y.shape[axis]))
    order[a], order[b] = order[b], order[a]
    return y.index_select(axis, torch.tensor(order))


def _norm(
    x: Tensor, w: Tensor, *, eps: float = 1e-5, upto: int | None = None, n: int = 0
) -> Tensor:
    wide = x.float()
    counted = wide[..., :upto]
    mean = counted.square().sum(-1, keepdim=True) / (n or x.shape[-1])
    return (w.float() * wide * torch.rsqrt(mean + eps)).to(x.dtype)


def _norms() -> Iterator[Wrong]:
    def wrong(name: str, kernel: Any, spread: float = 1.0) -> Wrong:
        return Wrong(f"rms_norm: {name}", kernel, rms_norm_like, ((9, 70), (70,)), spread)

    right = rms_norm_like
    yield wrong("tail of the row not counted", lambda x, w: _norm(x, w, upto=64))
    yield wrong("divided by the padded size", lambda x, w: _norm(x, w, n=128))
    yield wrong("divided by n - 1", lambda x, w: _norm(x, w, n=69))
    yield wrong("no eps, small rows", lambda x, w: _norm(x, w, eps=0), 3e-3)
    yield wrong("eps x 10, small rows", lambda x, w: _norm(x, w, eps=1e-4), 3e-3)
    yield wrong("eps outside the root, small rows", lambda x, w: (
        w.float() * x.float() / (x.float().square().mean(-1, keepdim=True).sqrt() + 1e-5)
    ).to(x.dtype), 3e-3)  # fmt: skip
    yield wrong("1 + weight", lambda x, w: right(x, 1 + w))
    yield wrong("no weight", lambda x, w: right(x, torch.ones_like(w)))
    yield wrong("weight shifted by one", lambda x, w: right(x, w.roll(1)))
    yield wrong("last row not written", lambda x, w: _zeroed(right(x, w), -1))
    yield wrong("last column not written", lambda x, w: _zeroed(right(x, w), ..., -1))
    yield wrong("mean subtracted", lambda x, w: right(x - x.mean(-1, keepdim=True), w))
    yield wrong("root of the sum", lambda x, w: _norm(x, w, n=1))
    yield wrong("factor of the first row for all", lambda x, w: (
        w * (x.float() * torch.rsqrt(x[0].float().square().mean() + 1e-5)).to(x.dtype)
    ))  # fmt: skip
    yield wrong("small values are zero", lambda x, w: _without_small(right(x, w)))
    yield wrong("its input is destroyed", lambda x, w: (right(x, w), x.zero_())[0])
    shapes: Shapes = ((9, 70), (70,), (70,))
    kernels: Kernels = {
        "no bias": lambda x, w, b: layer_norm_like(x, w, torch.zeros_like(b)),
        "2 % high": lambda x, w, b: layer_norm_like(x, w, b) * 1.02,
        "mean added": lambda x, w, b: layer_norm_like(x, w, b) + x.mean(-1, keepdim=True),
        "unbiased variance": lambda x, w, b: layer_norm_like(x, w * (69 / 70) ** 0.5, b),
    }  # fmt: skip
    for name, kernel in kernels.items():
        yield Wrong(f"layer_norm: {name}", kernel, layer_norm_like, shapes)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    border: int = 0,
    scale: float | None = None,
    upto: int | None = None,
    cap: float | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    rows, keys = q.shape[-2], k.shape[-2]
    scores = q.float() @ k.float().transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    if seen is None:
        seen = torch.ones(rows, keys, dtype=torch.bool).tril(border)
    seen = seen & (torch.arange(keys) < (upto or keys))
    p = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    return (p @ v.float()).to(q.dtype)


def _attention() -> Iterator[Wrong]:
    def wrong(name: str, kernel: Any, spread: float = 1.0) -> Wrong:
        return Wrong(f"attention: {name}", kernel, attention_like, ((1, 4, 21, 16),) * 3, spread)

    window = torch.ones(21, 21, dtype=torch.bool).tril().triu(-15)
    yield wrong("sees one key ahead", lambda q, k, v: _attend(q, k, v, border=1))
    yield wrong("does not see its own key", lambda q, k, v: _attend(q, k, v, border=-1))
    yield wrong("no mask", lambda q, k, v: _attend(q, k, v, border=99))
    yield wrong("newest keys ignored", lambda q, k, v: _attend(q, k, v, upto=20))
    yield wrong("tail of keys dropped", lambda q, k, v: _attend(q, k, v, upto=16))
    yield wrong("window of 16", lambda q, k, v: _attend(q, k, v, seen=window))
    yield wrong("no scale", lambda q, k, v: _attend(q, k, v, scale=1.0))
    yield wrong("scale 1 / head_dim", lambda q, k, v: _attend(q, k, v, scale=1 / 16))
    yield wrong("scale of another head_dim", lambda q, k, v: _attend(q, k, v, scale=18**-0.5))
    yield wrong("softcap of 5", lambda q, k, v: _attend(q, k, v, cap=5.0))
    yield wrong("heads of k rolled", lambda q, k, v: _attend(q, k.roll(1, 1), v))
    yield wrong("heads of v exchanged", lambda q, k, v: _attend(q, k, _swapped(v, 0, 1, 1)))
    yield wrong("one head not written", lambda q, k, v: _zeroed(_attend(q, k, v), 0, 3))
    yield wrong(
        "last token not written", lambda q, k, v: _zeroed(_attend(q, k, v), ..., -1, slice(None))
    )
    yield wrong("k and v exchanged", lambda q, k, v: _attend(q, v, k))
    yield wrong("half of head_dim", lambda q, k, v: _attend(q[..., :8], k[..., :8], v, scale=0.25))
    yield wrong("old token's value", lambda q, k, v: _attend(q, k, v.roll(1, -2)))


def _grouped_like(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention_like(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))


def _products() -> Iterator[Wrong]:
    shapes: Shapes = ((9, 70), (70, 24))
    kernels: Kernels = {
        "tail of k dropped": lambda a, b: a[:, :64] @ b[:64],
        "last term dropped": lambda a, b: a[:, :-1] @ b[:-1],
        "first term twice": lambda a, b: a @ b + a[:, :1] @ b[:1],
        "tail of rows not written": lambda a, b: _zeroed(a @ b, slice(8, None)),
        "tail of columns not written": lambda a, b: _zeroed(a @ b, ..., slice(16, None)),
        "one tile off": lambda a, b: torch.cat([(a @ b)[:, :16], (a @ b)[:, 15:-1]], 1),
        "a block transposed": lambda a, b: a @ torch.cat([b[:24].T.contiguous(), b[24:]]),
        "result of f8 operands": lambda a, b: a.to(torch.float8_e4m3fn).to(a.dtype)
        @ b.to(torch.float8_e4m3fn).to(b.dtype),
        "one column 2 % high": lambda a, b: torch.cat([(a @ b)[:, :-1], 1.02 * (a @ b)[:, -1:]], 1),
        "columns exchanged": lambda a, b: _swapped(a @ b, 3, 4),
        "zeros": lambda a, b: torch.zeros_like(a @ b),
        "absolute values": lambda a, b: (a @ b).abs(),
    }  # fmt: skip
    for name, kernel in kernels.items():
        yield Wrong(f"matmul: {name}", kernel, torch.matmul, shapes)
    shapes = ((9, 40), (40, 24), (40, 24))
    kernels = {
        "gate and up exchanged": lambda x, g, u: swiglu_like(x, u, g),
        "gelu for silu": lambda x, g, u: F.gelu(x @ g) * (x @ u),
        "no gate": lambda x, g, u: x @ u,
        "gate of the next channel": lambda x, g, u: F.silu(x @ g).roll(1, -1) * (x @ u),
        "quick gelu for silu": lambda x, g, u: (x @ g) * torch.sigmoid(1.702 * (x @ g)) * (x @ u),
    }
    for name, kernel in kernels.items():
        yield Wrong(f"swiglu: {name}", kernel, swiglu_like, shapes)
    shapes = ((1, 4, 21, 16), (1, 2, 21, 16), (1, 2, 21, 16))
    for name, order in {
        "kv heads interleaved": (0, 1, 0, 1),
        "first kv head for all": (0, 0, 0, 0),
    }.items():
        yield Wrong(
            f"grouped attention: {name}",
            lambda q, k, v, at=order: attention_like(q, k[:, at], v[:, at]),
            _grouped_like,
            shapes,
        )


def _others() -> Iterator[Wrong]:
    shapes: Shapes = ((9, 32), (9, 16))
    kernels: Kernels = {
        "neighbours are pairs": lambda x, t: torch.stack(
            rotary_like(torch.cat([x[..., ::2], x[..., 1::2]], -1), t).chunk(2, -1), -1
        ).flatten(-2),
        "turned the other way": lambda x, t: rotary_like(x, -t),
        "position one later": lambda x, t: rotary_like(x, t.roll(-1, 0)),
        "last pair not turned": lambda x, t: rotary_like(x, _zeroed(t, ..., -1)),
        "halves exchanged": lambda x, t: rotary_like(x, t).roll(16, -1),
    }  # fmt: skip
    for name, kernel in kernels.items():
        yield Wrong(f"rotary: {name}", kernel, rotary_like, shapes, 1.5)
    kernels = {
        "last column left out": lambda x: F.pad(x[..., :-1].softmax(-1), (0, 1)),
        "over the rows": lambda x: x.softmax(0),
        "base 2": lambda x: (x * 0.6931472).softmax(-1),
        "not normalised": lambda x: (x - x.amax(-1, True)).exp(),
        "temperature 1.02": lambda x: (x / 1.02).softmax(-1),
        "log of it": lambda x: x.log_softmax(-1),
    }
    for name, kernel in kernels.items():
        yield Wrong(f"softmax: {name}", kernel, lambda x: x.softmax(-1), ((9, 70),), 3)
    yield Wrong(
        "argmax: of the smallest", lambda x: x.argmin(-1), lambda x: x.argmax(-1), ((9, 70),)
    )
    yield Wrong(
        "argmax: first half", lambda x: x[..., :35].argmax(-1), lambda x: x.argmax(-1), ((9, 70),)
    )
    yield Wrong("cumsum: exclusive", lambda x: x.cumsum(-1) - x, lambda x: x.cumsum(-1), ((5, 40),))
    yield Wrong(
        "cumsum: restarts at 32",
        lambda x: torch.cat([x[:, :32].cumsum(-1), x[:, 32:].cumsum(-1)], 1),
        lambda x: x.cumsum(-1),
        ((5, 40),),
    )
    yield Wrong(
        "conv1d: flipped", lambda x, w: F.conv1d(x, w.flip(-1)), F.conv1d, ((2, 5, 23), (7, 5, 3))
    )
    yield Wrong(
        "sort: descending",
        lambda x: x.sort(-1, descending=True)[0],
        lambda x: x.sort(-1)[0],
        ((9, 70),),
    )
    yield Wrong("dict: names swapped", lambda x: {"a": x.sin(), "b": x.cos()},
                lambda x: {"a": x.cos(), "b": x.sin()}, ((9, 70),))  # fmt: skip


def wrong_kernels() -> Iterator[Wrong]:
    yield from _norms()
    yield from _attention()
    yield from _products()
    yield from _others()
