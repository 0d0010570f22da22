"""What float32 arithmetic in another order may add to the exact result of one aten operation.

A correct kernel computes each operation in float32 and rounds once to the dtype it stores. Its
sums may run in any order, its functions come from another library: so its result before rounding
is a little off the exact one. `noise` is that little as a standard deviation, `terms` the length
of the longest sum behind one element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload

from ..format.host_copy import is_host
from . import sequential
from .grouped import grouped_product
from .narrow_product import is_narrow, narrow_product
from .simulation import Noise, product

U = 2.0**-24
"""Unit roundoff of float32."""
SUMS = 0.5 * U
"""Of sum |a b|: a sequential float32 sum of terms of either sign is off by that, of any length."""
ROUNDING = 0.43
"""RMS of one rounding to nearest, in u."""
DRIFT = ROUNDING / 3**0.5 * U
"""Of sqrt(terms) |sum|: each partial sum of n terms of one sign is i / n of the whole and rounded
by ROUNDING of its u. The mean of squares, a softmax's denominator."""
SMALLEST = 2.0**-149
"""Float32's step between denormals."""
STEP = SMALLEST / 12**0.5
"""Of a result among them, which is no part of its size: the RMS of one rounding to that step."""
FUNCTIONS = 2 * U
"""Of a function's result: libraries promise 1 to 4 ulp."""

GROUPED = ("_grouped_mm", "grouped_mm_fallback")

EXACT = {
    "add", "sub", "rsub", "mul", "div", "neg", "abs", "sign", "relu", "clamp", "clamp_min",
    "clamp_max", "hardtanh", "maximum", "minimum", "amax", "amin", "floor", "ceil", "round",
    "trunc", "fmod", "remainder", "floor_divide", "threshold", "leaky_relu", "square",
}  # fmt: skip
"""Correctly rounded by IEEE 754, or without rounding: every kernel gives the same."""


@functools.cache
def name_of(func: OpOverload) -> str:
    """`add` of aten::add_.Tensor: the name without overload and without the mark of in-place."""
    name = func._schema.name.partition("::")[2]
    return name if name.startswith("_") or not name.endswith("_") else name[:-1]


def noise(
    name: str, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    """The result's errors before it is rounded, none where there are none.

    `args` are the float64 operands of one run, `exact` its result. Whole numbers (counts, ids,
    one-hot rows carried in floats) are no arithmetic: every kernel has them exactly.
    """
    if name in TRANSFORMS:
        return [_of_transform(args, exact)]
    if exact.is_complex():
        return _complex(name, exact)
    if name in EXACT or exact.numel() == 0:
        return []
    rounds = is_rounded(exact)
    if rounds is False:
        return []
    parts = _noise(name, func, args, kwargs, exact)
    return [replace(part, scale=if_rounded(rounds, part.scale)) for part in parts]


def _noise(
    name: str, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], exact: torch.Tensor
) -> list[Noise]:
    length = terms(name, args, exact)
    rule = _SUMS.get(name)
    if rule is not None:
        alone = sequential.of_operation(name, args, exact)
        return [Noise(of_sum(rule(func, args, kwargs), exact, length), alone=alone)]
    if name == "gelu":
        return [Noise(FUNCTIONS * args[0].abs())]
    own = Noise(FUNCTIONS * exact.abs())
    if name in _BY_TANH:
        return [replace(own, alone=_BY_TANH[name](args[0].float()).double() - exact)]
    if name in _OF_ROUNDED_ARGUMENTS:
        return [own, Noise(U * _steepness(func, args, kwargs))]
    if name == "logit":  # near 1/2 the logarithm of a rounded 1
        return [own, Noise(torch.full_like(exact, U))]
    if name in ("_softmax", "_log_softmax"):
        row = exact.select(args[1], 0).unsqueeze(args[1])
        common = torch.full_like(row, DRIFT * length**0.5)
        if name == "_softmax":
            own = replace(own, alone=exact * _of_base_2(args[0], args[1], exact))
            return [own, Noise(common, exact, alone=sequential.of_weights(exact, args[1]))]
        return [own, Noise(common, alone=sequential.of_weights(exact.exp(), args[1]))]
    alone = sequential.of_operation(name, args, exact) if length > 1 else None
    if name in ("linalg_vector_norm", "norm", "_pdist_forward", "_cdist_forward"):
        return [
            own,
            Noise(DRIFT * length**0.5 * exact.abs(), alone=alone),
            Noise(_of_tiny_squares(exact, length)),
        ]
    if length > 1:  # a function of one sum, like var
        return [own, Noise(DRIFT * length**0.5 * exact.abs(), alone=alone)]
    return [own]


def _of_base_2(x: torch.Tensor, axis: int, weights: torch.Tensor) -> torch.Tensor:
    """The share that a softmax is off by which takes powers of 2, as GPUs have an instruction for:
    it rounds x log2(e), which is larger than the difference to the maximum."""
    x = x.float()
    scores = x * math.log2(math.e)
    off = (scores - scores.amax(axis, keepdim=True)).double() * math.log(2)
    off = (off - (x - x.amax(axis, keepdim=True)).double()).nan_to_num(0.0, 0.0, 0.0)
    return off - (weights * off).sum(axis, keepdim=True)


def _of_tiny_squares(exact: torch.Tensor, length: int) -> torch.Tensor:
    """A norm whose squares are below float32's smallest step has lost them."""
    return (exact.square() + length * SMALLEST).sqrt() - exact.abs()


_BY_TANH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda x: 0.5 * x * (1 + (0.5 * x).tanh()),
    "sigmoid": lambda x: 0.5 * (1 + (0.5 * x).tanh()),
}
"""Functions as a kernel has them that makes them of tanh, which cancels where they are small."""
_OF_ROUNDED_ARGUMENTS = {
    "sinc", "digamma", "lgamma", "polygamma", "special_zeta", "erfinv", "special_ndtri",
    "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
}  # fmt: skip
"""Compute with their argument before they are a function of it: pi x, or a shift by recurrence."""
_STEP = 2.0**-20


def _steepness(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """|x f'(x)|: what a relative change of the argument does to the result."""
    at = next(i for i, a in enumerate(args) if isinstance(a, torch.Tensor))
    sides = [
        func(*args[:at], args[at] * (1 + h), *args[at + 1 :], **kwargs) for h in (_STEP, -_STEP)
    ]
    return ((sides[0] - sides[1]) / (2 * _STEP)).abs().nan_to_num(0.0, 0.0, 0.0)


_WHOLE = 2.0**24
"""Up to it float32 has all whole numbers; beyond 2^53 every number is whole."""


def is_rounded(exact: torch.Tensor) -> bool | torch.Tensor:
    """False for counts, ids, one-hot rows: every kernel has them exactly. Of an accelerator's the
    answer stays there: a host that waits for it at every operation cannot run ahead."""
    if not is_host(exact.device):
        return _no_count(exact).any()
    first = float(exact[(0,) * exact.ndim])  # most often tells, and need not read them all
    if not math.isinf(first) and not (first.is_integer() and abs(first) <= _WHOLE):
        return True
    return bool(_no_count(exact).any())


def _no_count(exact: torch.Tensor) -> torch.Tensor:
    return (exact != exact.round()) | ((exact.abs() > _WHOLE) & ~exact.isinf())


def if_rounded(rounded: bool | torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A noise's scale, 0 where is_rounded() says no."""
    return scale if isinstance(rounded, bool) else torch.where(rounded, scale, 0.0)


def _complex(name: str, exact: torch.Tensor) -> list[Noise]:
    """Each part of a product is a sum of two: off by half a rounding of |a b| together."""
    if name in EXACT - {"mul", "div", "square"} or name in _PARTS:
        return []
    return [Noise((SUMS if name == "mul" else FUNCTIONS) * exact.abs())]


_PARTS = {"complex", "view_as_complex", "conj", "conj_physical", "_conj"}
"""Put a complex number together or turn its sign: nothing is rounded."""


def of_sum(
    magnitudes: torch.Tensor, exact: torch.Tensor, length: int, steps: float = 0.0
) -> torch.Tensor:
    """Of a sum whose terms have these magnitudes in all. `steps`: the RMS of what is rounded to
    denormals' step inside, zeros are not."""
    off = SUMS * magnitudes
    if steps:
        off += magnitudes.clamp_max(steps)
    return torch.hypot(off, DRIFT * length**0.5 * exact)


def terms(name: str, args: Sequence[Any], out: torch.Tensor) -> int:
    """Length of the longest sum behind one element of `out`, 1 for elementwise operations."""
    given = [a for a in args if isinstance(a, torch.Tensor)]
    if name in ("mm", "bmm", "dot", "mv", "matmul", *GROUPED):
        return given[0].shape[-1]
    if name in ("addmm", "baddbmm", "addmv"):
        return given[1].shape[-1]
    if name in ("_softmax", "_log_softmax", "native_layer_norm", "cumsum", "logcumsumexp"):
        return given[0].shape[-1] if given[0].ndim else 1
    if name == "convolution":
        return given[1][0].numel()
    if name == "native_group_norm":
        return given[0][0].numel() // int(args[6])
    if name in ("native_batch_norm", "cudnn_batch_norm") and args[5]:
        return given[0].numel() // max(1, given[0].shape[1])
    if name in TRANSFORMS:
        return math.prod(given[0].shape[axis] for axis in args[1])
    if name in ("avg_pool2d", "avg_pool3d"):  # one extent of the window is meant for all axes
        return int(math.prod(args[1]) ** (int(name[-2]) // len(args[1])))
    if name.startswith("_adaptive_avg_pool"):
        return max(1, given[0].numel() // max(1, out.numel()))
    if name.startswith("_scaled_dot_product"):
        return max(given[0].shape[-1], given[1].shape[-2])
    if name in ("sum", "mean", "var", "std", "linalg_vector_norm", "norm", "prod", "logsumexp"):
        return max(1, given[0].numel() // max(1, out.numel()))
    if name in ("_pdist_forward", "_cdist_forward"):
        return given[0].shape[-1]
    if name in ("index_add", "scatter_add", "scatter_reduce"):
        return 2
    return 1


def _magnitudes(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The operation on absolute values."""
    bare = [a.abs() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    result: torch.Tensor = func(*bare, **kwargs)
    return result


def _product(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    return _of_magnitudes(args[0], args[1])


def _of_magnitudes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if is_narrow(a, b):
        return narrow_product(a.abs(), b.abs())
    return product(a, b, magnitudes=True)


def _product_and_sum(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Tensor:
    scale = [abs(float(kwargs.get(name, 1))) for name in ("alpha", "beta")]
    return scale[0] * _of_magnitudes(args[1], args[2]) + scale[1] * args[0].abs()


def _grouped(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    return grouped_product(args[0].abs(), args[1].abs(), *args[2:3], **_offsets(kwargs))


def _offsets(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"offs": kwargs["offs"]} if "offs" in kwargs else {}


TRANSFORMS = {"_fft_r2c", "_fft_c2c", "_fft_c2r"}


def _of_transform(args: Sequence[Any], exact: torch.Tensor) -> Noise:
    """Each element is a sum over all that are transformed, times factors of size 1 that are
    functions, too."""
    x, axes, scaling = args[:3]
    half = exact.is_floating_point()  # of what comes in, the rest is its mirror image
    n = math.prod((exact if half else x).shape[axis] for axis in axes)
    shared = {0: 1.0, 1: n**-0.5, 2: 1.0 / n}[int(scaling)] * (2.0 if half else 1.0)
    sizes = x.abs()
    magnitudes = shared * sizes.sum(axes, keepdim=True)
    factors = shared * FUNCTIONS * sizes.square().sum(axes, keepdim=True).sqrt()
    scale = torch.hypot(of_sum(magnitudes, exact.abs(), n), factors)
    return Noise(scale.expand(exact.shape))


_SUMS: dict[str, Callable[..., torch.Tensor]] = {
    "mm": _product,
    "_grouped_mm": _grouped,
    "grouped_mm_fallback": _grouped,
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
    "avg_pool2d": _magnitudes,
    "avg_pool3d": _magnitudes,
    "_adaptive_avg_pool2d": _magnitudes,
    "_adaptive_avg_pool3d": _magnitudes,
}
