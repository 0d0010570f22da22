"""What float32 arithmetic may add to the operations that autograd runs backwards.

A gradient vanishes where the function is flat, and its terms need not: each rule counts what is
summed by its magnitudes, as arithmetic.py does for the sums of a forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload

from . import arithmetic
from .arithmetic import SUMS, U, if_rounded, is_rounded, of_sum
from .simulation import Noise

Rule = Callable[[OpOverload, Sequence[Any], Mapping[str, Any], torch.Tensor], list[Noise]]


def noise(
    name: str, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    """arithmetic.noise(), of operations of a backward, too."""
    rule = _RULES.get(name)
    if rule is None:
        return arithmetic.noise(name, func, args, kwargs, exact)
    rounds = exact.numel() > 0 and is_rounded(args[0] if name in _CANCELLING else exact)
    if rounds is False:
        return []
    parts = rule(func, args, kwargs, exact)
    return [replace(part, scale=if_rounded(rounds, part.scale)) for part in parts]


def _softmax(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    """y (g - sum y g): the sum is one number for its row."""
    g, y, axis = args[:3]
    terms = g * y
    magnitudes = terms.abs()
    row = of_sum(magnitudes.sum(axis, keepdim=True), terms.sum(axis, keepdim=True), g.shape[axis])
    return [Noise(2 * U * magnitudes), Noise(row, y)]


def _log_softmax(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    """g - exp(y) sum g."""
    g, y, axis = args[:3]
    whole, weights = g.sum(axis, keepdim=True), y.exp()
    row = of_sum(g.abs().sum(axis, keepdim=True), whole, g.shape[axis])
    return [Noise(2 * U * (g.abs() + (weights * whole).abs())), Noise(row, weights)]


def _layer_norm(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    g, x, behind, mean, rstd, weight = args[:6]
    sizes = (x.abs() + mean.abs()) * rstd
    return _norm(g, (x - mean) * rstd, sizes, rstd, weight, exact, len(behind))


def _rms_norm(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    g, x, behind, rstd, weight = args[:5]
    normed = x * rstd
    return _norm(g, normed, normed.abs(), rstd, weight, exact, len(behind))


def _batch_norm(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    """As a layer norm whose rows are channels."""
    g, x, weight, running_mean, running_var, mean, rstd, train, eps = args[:9]
    if not train:
        mean, rstd = running_mean, (running_var + eps).rsqrt()
    g, x = g.movedim(1, 0), x.movedim(1, 0)
    shape = (-1, *[1] * (g.ndim - 1))
    mean, rstd = mean.reshape(shape), rstd.reshape(shape)
    weight = None if weight is None else weight.reshape(shape)
    normed, sizes = (x - mean) * rstd, (x.abs() + mean.abs()) * rstd
    if exact.shape != args[0].shape:
        count = g[0].numel()
        sums = [terms.abs().flatten(1).sum(1) for terms in (g * sizes, g)]
        return [Noise(of_sum(torch.maximum(*sums).view(exact.shape), exact, count))]
    if not train:
        return [Noise(3 * U * exact.abs())]
    parts = _norm(g, normed, sizes, rstd, weight, normed, g.ndim - 1)
    return [
        Noise(it.scale.movedim(0, 1), None if it.times is None else it.times.movedim(0, 1))
        for it in parts
    ]


def _norm(
    g: torch.Tensor,
    normed: torch.Tensor,
    sizes: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    exact: torch.Tensor,
    behind: int,
) -> list[Noise]:
    """Of the input's gradient two means are common to a row; the others are sums over all rows,
    of the weight and of the bias alike. `sizes`: what is multiplied where the mean is taken off
    last, as torch does it."""
    if exact.shape != g.shape:
        rows = list(range(g.ndim - behind))
        count = g.numel() // max(1, exact.numel())
        sums = [terms.abs().sum(rows) for terms in (g * normed, g)]
        return [Noise(of_sum(torch.maximum(*sums).view(exact.shape), exact, count))]
    axes = list(range(-behind, 0))
    scaled = g if weight is None else g * weight
    slope = (scaled * normed).mean(axes, keepdim=True).abs()
    parts = {
        "own": scaled.abs() + sizes * slope,
        "mean": scaled.abs().mean(axes, keepdim=True) + sizes.amax(axes, keepdim=True) * slope,
        "slope": (scaled.abs() * sizes).mean(axes, keepdim=True),
    }
    return [
        Noise(2 * U * rstd * parts["own"]),
        Noise(SUMS * rstd * parts["mean"], torch.ones_like(normed)),
        Noise(SUMS * rstd * parts["slope"], normed),
    ]


def _embedding(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    magnitudes = func(args[0].abs(), *args[1:], **kwargs)
    return [Noise(of_sum(magnitudes, exact, _most_alike(args[1])))]


def _most_alike(ids: torch.Tensor) -> int:
    """How often the most frequent id is there: the terms of its row."""
    return int(ids.flatten().bincount().amax()) if ids.numel() else 1


def _put_together(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    """What was read by index: each place is the sum of all that read it."""
    magnitudes = func(args[0].abs(), args[1], args[2].abs(), *args[3:], **kwargs)
    return [Noise(of_sum(magnitudes, exact, 2))]


def _convolution(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    """Which of the three results it is, its shape tells; of two alike the larger error counts."""
    made = func(*(a.abs() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)
    alike = [it for it in made if it is not None and it.shape == exact.shape]
    count = max(1, args[0].numel() // max(1, args[0].shape[1]))
    return [Noise(of_sum(torch.stack(alike).amax(0), exact, count))]


def _silu(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    """g s (1 + x (1 - s)), whose two terms cancel where x is about -1.3."""
    g, x = args[:2]
    s = x.sigmoid()
    return [Noise(2 * U * (g * s).abs() * (1 + x.abs() * (1 - s)))]


def _tanh(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    """g (1 - y^2)."""
    return [Noise(2 * U * args[0].abs() * (1 + args[1].square()))]


def _gelu(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    """g (1 + t) / 2 and, of tanh, g x (1 - t^2) u'(x) / 2, which cancel where x is far below 0."""
    g, x = args[:2]
    scale = 2 * U * g.abs()
    if kwargs.get("approximate") == "tanh":
        scale = scale * (1 + x.abs() * _TANH_SLOPE * (1 + 3 * _TANH_CUBE * x.square()))
    return [Noise(scale)]


_TANH_SLOPE, _TANH_CUBE = (2 / math.pi) ** 0.5, 0.044715
"""gelu's tanh is of u(x) = sqrt(2 / pi) (x + 0.044715 x^3)."""

_CANCELLING = {
    "_softmax_backward_data", "native_layer_norm_backward", "native_batch_norm_backward",
}  # fmt: skip
"""May be exactly 0 of numbers that are rounded: in a row with one key, or with one element."""
_RULES: dict[str, Rule] = {
    "_softmax_backward_data": _softmax,
    "_log_softmax_backward_data": _log_softmax,
    "native_layer_norm_backward": _layer_norm,
    "_fused_rms_norm_backward": _rms_norm,
    "native_batch_norm_backward": _batch_norm,
    "embedding_dense_backward": _embedding,
    "index_put": _put_together,
    "convolution_backward": _convolution,
    "silu_backward": _silu,
    "tanh_backward": _tanh,
    "gelu_backward": _gelu,
}
