"""What float32 arithmetic in another order may add to the exact result of one aten operation.

A correct kernel computes each operation in float32 and rounds once to the dtype it stores. Its
sums may run in any order, its functions come from another library: so its result before rounding
lies a little off the exact one. `noise` is that little as a standard deviation, `terms` the length
of the longest sum behind one element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from python_inspector.simulation import product

U = 2.0**-24
"""Unit roundoff of float32."""
SUMS = 0.5 * U
"""Of sum |a b|: sequential float32 sums of 100 to 10,000 terms are off by 0.3 to 1 of it at most;
a random walk of roundings is off by much less where terms cancel little."""
FUNCTIONS = 2 * U
"""Of a function's result: libraries promise 1 to 4 ulp."""

EXACT = {
    "add", "sub", "rsub", "mul", "div", "neg", "abs", "sign", "relu", "clamp", "clamp_min",
    "clamp_max", "hardtanh", "maximum", "minimum", "amax", "amin", "floor", "ceil", "round",
    "trunc", "fmod", "remainder", "floor_divide", "threshold", "leaky_relu", "square",
}  # fmt: skip
"""Correctly rounded by IEEE 754, or without rounding: every kernel gives the same."""


def name_of(func: OpOverload) -> str:
    """`add` of aten::add_.Tensor: the name without overload and without the mark of in-place."""
    name = func._schema.name.partition("::")[2]
    return name if name.startswith("_") or not name.endswith("_") else name[:-1]


def noise(
    name: str, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> torch.Tensor | None:
    """Standard deviation of the result's error before it is rounded; None where there is none.

    `args` are the float64 operands of one run, `exact` its result. Whole numbers (counts, ids,
    one-hot rows carried in floats) are no arithmetic: every kernel has them exactly.
    """
    if name in EXACT or exact.numel() == 0 or bool((exact == exact.round()).all()):
        return None
    rule = _SUMS.get(name)
    if rule is not None:
        return SUMS * rule(func, args, kwargs)
    if name == "native_layer_norm":
        return _layer_norm(args, exact)
    if name == "gelu":
        return FUNCTIONS * args[0].abs()
    return FUNCTIONS * exact.abs()


def terms(name: str, args: Sequence[Any], out: torch.Tensor) -> int:
    """Length of the longest sum behind one element of `out`, 1 for elementwise operations."""
    given = [a for a in args if isinstance(a, torch.Tensor)]
    if name in ("mm", "bmm", "dot", "mv", "matmul"):
        return given[0].shape[-1]
    if name in ("addmm", "baddbmm", "addmv"):
        return given[1].shape[-1]
    if name in ("_softmax", "_log_softmax", "native_layer_norm", "cumsum", "logcumsumexp"):
        return given[0].shape[-1] if given[0].ndim else 1
    if name == "convolution":
        return given[1][0].numel()
    if name.startswith("_scaled_dot_product"):
        return max(given[0].shape[-1], given[1].shape[-2])
    if name in ("sum", "mean", "var", "std", "linalg_vector_norm", "norm", "prod", "logsumexp"):
        return max(1, given[0].numel() // max(1, out.numel()))
    if name in ("index_add", "scatter_add", "scatter_reduce"):
        return 2
    return 1


def _magnitudes(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The operation on absolute values."""
    bare = [a.abs() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    result: torch.Tensor = func(*bare, **kwargs)
    return result


def _product(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    return product(args[0], args[1], magnitudes=True)


def _product_and_sum(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Tensor:
    scale = [abs(float(kwargs.get(name, 1))) for name in ("alpha", "beta")]
    return scale[0] * product(args[1], args[2], magnitudes=True) + scale[1] * args[0].abs()


_SUMS: dict[str, Callable[..., torch.Tensor]] = {
    "mm": _product,
    "bmm": _product,
    "mv": _product,
    "dot": _product,
    "addmm": _product_and_sum,
    "baddbmm": _product_and_sum,
    "addmv": _product_and_sum,
    "sum": _magnitudes,
    "mean": _magnitudes,
    "cumsum": _magnitudes,
    "convolution": _magnitudes,
    "index_add": _magnitudes,
    "scatter_add": _magnitudes,
}


def _layer_norm(args: Sequence[Any], exact: torch.Tensor) -> torch.Tensor:
    """Of (x - mean) rstd w + b: two roundings of either summand, and the mean's error."""
    x, shape, weight, bias, eps = args[:5]
    axes = tuple(range(-len(shape), 0))
    if exact.shape != x.shape:  # mean or rstd
        return FUNCTIONS * exact.abs()
    rstd = torch.rsqrt(x.var(axes, keepdim=True, correction=0) + eps)
    weight = 1.0 if weight is None else weight.abs()
    shift = 0.0 if bias is None else bias.abs()
    mean = x.abs().mean(axes, keepdim=True)
    return FUNCTIONS * (exact.abs() + shift) + SUMS * mean * rstd * weight
