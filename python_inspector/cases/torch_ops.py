"""What torch calls each op of the native table (kernels/ops/op_list.h): a row is the call that the
op is held to, and the numbers it has. Operands have the names and order of the op's row.

Ops that are parts of models (rms_norm, rotary, sdpa, ...) have blocks of their own and are recorded
from models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from .torch_attention_gradients import ATTENTION_BACKWARD
from .torch_call import Op, Shape, once, wide
from .torch_gradients import BACKWARD

_ODD: tuple[tuple[Shape, ...], ...] = (((3, 65),), ((2, 5, 33),), ((1,),))
_PAIRS: tuple[tuple[Shape, ...], ...] = (
    ((3, 65), (3, 65)), ((5, 1, 7), (33, 7)), ((1,), (1,)), ((2, 9), (1,)),
)  # fmt: skip
_ROWS: tuple[tuple[Shape, ...], ...] = (((3, 65),), ((2, 5, 33),), ((4, 1031),), ((1, 1),))


def _unary(like: Callable[..., Any], *params: Mapping[str, Any]) -> Op:
    return Op(lambda x, **numbers: like(x, **numbers), _ODD, params or ({},))


def _binary(like: Callable[..., Any], *params: Mapping[str, Any]) -> Op:
    return Op(lambda a, b, **numbers: like(a, b, **numbers), _PAIRS, params or ({},))


def _reduction(like: Callable[..., Any], *axes: tuple[int, ...], kind: str = "") -> Op:
    def along(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
        out = like(x, axes)
        return out if out.dim() else out.reshape(1)

    return Op(along, _ROWS, tuple({"axes": list(it)} for it in axes), {"x": kind} if kind else {})


_ONE, _SEVERAL = ((1,), (0,)), ((1,), (0,), (0, 1))
_NUMBERS = ({"number": 0.3125}, {"number": 2.5})


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """In float64: torch's float32 kernel of the CPU gives NaN for infinity (2.13)."""
    return functional.gelu(x.double()).to(x.dtype)


def _top_5(x: torch.Tensor, largest: bool) -> dict[str, torch.Tensor]:
    """Of equal ones the first, which torch.topk does not say."""
    values, ids = torch.sort(x, descending=largest, stable=True)
    return {"values": values[..., :5].contiguous(), "ids": ids[..., :5].contiguous()}


def _group_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float
) -> torch.Tensor:
    """In float32: of 16 bits torch's kernel of a GPU rounds mean and deviation to them (2.11)."""
    return once(lambda t, w, b: functional.group_norm(t, groups, w, b, eps), x, weight, bias)


_RENAMED: dict[str, Callable[..., Any]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": _gelu,
    "softplus": functional.softplus,
}
_UNARY = (
    *("neg", "abs", "sign", "floor", "ceil", "round", "relu", "reciprocal", "square", "sqrt"),
    *("rsqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "erf", "tanh", "silu"),
    *("sigmoid", "softplus"),
)
_CASTS = ("int64", "int32", "int8", "uint8", "bool")
"""Floats are stored in the dtype of a run: to another one they are cast in block `cast`."""
_BINARY = ("add", "sub", "mul", "div", "pow")
_OF_EQUAL_ONES = (
    *("minimum", "maximum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"),
)

ELEMENTWISE: dict[str, Op] = {
    **{name: _unary(_RENAMED.get(name) or getattr(torch, name)) for name in _UNARY},
    **{name: _binary(getattr(torch, name)) for name in _BINARY},
    **{
        name: replace(_binary(getattr(torch, name)), kinds={"a": "equal", "b": "equal"})
        for name in _OF_EQUAL_ONES
    },
    "gelu": replace(_unary(_gelu), calls=functional.gelu),
    "gelu_tanh": _unary(lambda x: functional.gelu(x, approximate="tanh")),
    "leaky_relu": _unary(lambda x, number: functional.leaky_relu(x, number), *_NUMBERS),
    "elu": _unary(lambda x, number: functional.elu(x, number), *_NUMBERS),
    "add_scalar": _unary(lambda x, number: x + number, *_NUMBERS),
    "affine": _unary(
        lambda x, number, shift: once(lambda t: t * number + shift, x),
        {"number": 2.5, "shift": -1},
    ),
    "multiply_add": Op(
        lambda a, b, c: once(lambda p, q, r: p * q + r, a, b, c),
        (((3, 65),) * 3, ((5, 1, 7), (33, 1), (7,))),
    ),
    "where": Op(
        lambda condition, a, b: torch.where(condition, a, b),
        (((3, 65),) * 3, ((5, 1, 7), (33, 1), (7,))),
        kinds={"condition": "bool"},
    ),
}

REDUCTIONS: dict[str, Op] = {
    "sum": _reduction(torch.sum, *_SEVERAL),
    "mean": _reduction(torch.mean, *_SEVERAL),
    "min": _reduction(torch.amin, *_SEVERAL),
    "max": _reduction(torch.amax, *_SEVERAL),
    "any": _reduction(lambda x, axes: torch.any(x, axes).bool(), *_SEVERAL, kind="few"),
    "all": _reduction(lambda x, axes: torch.all(x, axes).bool(), *_SEVERAL, kind="most"),
    "log_sum_exp": _reduction(torch.logsumexp, *_SEVERAL),
    "norm": _reduction(lambda x, axes: torch.linalg.vector_norm(x, dim=axes), *_SEVERAL),
    "prod": _reduction(lambda x, axes: torch.prod(x, axes[0]), *_ONE),
    "argmin": _reduction(lambda x, axes: torch.argmin(x, axes[0]), *_ONE, kind="equal"),
    "argmax": _reduction(lambda x, axes: torch.argmax(x, axes[0]), *_ONE, kind="equal"),
}

OPS: dict[str, Op] = {
    **ELEMENTWISE,
    **REDUCTIONS,
    "scale": _unary(lambda x, number: x * number, *_NUMBERS),
    "softcap": _unary(lambda x, number: torch.tanh(x / number) * number, {"number": 2.5}),
    "scaled_add": Op(
        lambda x, residual, number: x * number + residual, (((3, 65), (3, 65)),), _NUMBERS
    ),
    "cumsum": Op(lambda x, axis: torch.cumsum(x, axis), _ROWS, ({"axis": 1}, {"axis": 0})),
    "softmax": Op(lambda x: torch.softmax(x, -1), _ROWS),
    "layer_norm": Op(
        lambda x, weight, bias, eps: functional.layer_norm(x, weight.shape, weight, bias, eps),
        (((3, 65), (65,), (65,)), ((2, 5, 256), (256,), (256,))),
        ({"eps": 1e-5},),
        sums_products=True,
    ),
    "linear": Op(
        lambda x, weight, bias: functional.linear(x, weight, bias),
        (((3, 65), (33, 65), (33,)), ((2, 5, 129), (8, 129), (8,))),
        sums_products=True,
    ),
    "matmul": Op(
        lambda a, b, transpose_b: a @ (b.transpose(-1, -2) if transpose_b else b),
        (((2, 3, 9, 33), (2, 3, 33, 33)), ((1, 1, 1, 8), (1, 1, 8, 8))),
        ({"transpose_b": False}, {"transpose_b": True}),
        sums_products=True,
    ),
    "masked_add": Op(lambda x, mask: x + mask, (((2, 3, 5, 33), (2, 1, 5, 33)),)),
    "repeat_heads": Op(lambda x: x.repeat_interleave(2, 1), (((2, 3, 5, 33),),)),
    "copy": Op(lambda x: x.clone(), _ODD),
    "cast": Op(
        lambda x, to: x.to(getattr(torch, to)),
        (((3, 65),),),
        tuple({"to": to} for to in _CASTS),
        {"x": "small"},
    ),
    "transpose": Op(lambda x: x.transpose(-1, -2).contiguous(), (((3, 65),), ((2, 5, 33),))),
    "mask_fill": Op(
        lambda x, mask, value: x.masked_fill(mask, value),
        (((3, 65), (3, 65)),),
        ({"value": -2.5},),
        {"mask": "bool"},
    ),
    "mask_rows": Op(
        lambda x, valid: torch.where(valid[:, :, None], x, 0),
        (((2, 5, 33), (2, 5)),),
        kinds={"valid": "bool"},
    ),
    "index_select": Op(
        lambda x, ids, axis: torch.index_select(x, axis, ids),
        (((5, 65), (33,)), ((2, 5, 33), (9,))),
        ({"axis": 1},),
        {"ids": "places"},
    ),
    "gather": Op(
        lambda x, ids, axis: torch.gather(x, axis, ids),
        (((5, 65), (4, 33)), ((2, 5, 33), (2, 9, 31))),
        ({"axis": 1},),
        {"ids": "places"},
    ),
    "index_add": Op(
        lambda x, ids, source, axis: once(lambda p, q: p.index_add(axis, ids, q), x, source),
        (((5, 65), (33,), (5, 33)), ((2, 5, 33), (9,), (2, 9, 33))),
        ({"axis": 1},),
        {"ids": "places"},
    ),
    "scatter_add": Op(
        lambda x, ids, source, axis: once(lambda p, q: p.scatter_add(axis, ids, q), x, source),
        (((5, 65), (4, 33), (5, 33)), ((2, 5, 33), (2, 9, 31), (2, 9, 33))),
        ({"axis": 1},),
        {"ids": "places"},
    ),
    "concat": Op(
        lambda a, b, axis: torch.cat((a, b), axis),
        (((3, 65), (3, 7)), ((2, 5, 33), (2, 1, 33))),
        ({"axis": 1},),
    ),
    "permute": Op(
        lambda x, axes: x.permute(axes).contiguous(),
        (((2, 5, 33),), ((3, 1, 65),)),
        ({"axes": [2, 0, 1]}, {"axes": [1, 0, 2]}, {"axes": [0, 2, 1]}),
    ),
    "pad": Op(
        lambda x, left, value: functional.pad(x, (left[1], 1, left[0], -1), value=value),
        (((3, 65),),),
        ({"left": [1, 2], "value": 2.5}, {"left": [-1, 0], "value": -0.5}),
    ),
    "flip": Op(lambda x, axes: torch.flip(x, axes), _ROWS, ({"axes": [1]}, {"axes": [0, 1]})),
    "roll": Op(
        lambda x, shifts: torch.roll(x, shifts, (0, 1)),
        (((3, 65),),),
        ({"shifts": [1, -7]}, {"shifts": [0, 70]}),
    ),
    "top_k": Op(_top_5, (((3, 65),), ((4, 1031),)), ({"largest": True}, {"largest": False})),
    "embedding": Op(
        lambda ids, weight, scale: functional.embedding(ids, weight) * scale,
        (((2, 5), (11, 33)),),
        ({"scale": 1.0}, {"scale": 2.0}),
        {"ids": "ids"},
    ),
}  # fmt: skip


def _gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    bias: torch.Tensor,
    alpha: float,
    beta: float,
    transpose_a: bool,
    transpose_b: bool,
    function: str = "",
) -> torch.Tensor:
    left = wide(a).transpose(-1, -2) if transpose_a else wide(a)
    right = wide(b).transpose(-1, -2) if transpose_b else wide(b)
    out = alpha * (left @ right) + wide(bias)
    out = out + beta * wide(c) if beta else out
    return (functional.silu(out) if function else out).to(a.dtype)


def _convolution(name: str, *weights: Shape) -> Op:
    """Of x with 4 channels and 6 results in 2 groups; of the last, none but the groups' own."""
    like = getattr(functional, name)
    axes = len(weights[0]) - 2
    more = {"output_padding": [1] + [0] * (axes - 1)} if "transpose" in name else {}
    plain = {it: [1] * axes for it in ("stride", "dilation")} | {"padding": [0] * axes}
    plain |= {it: [0] * axes for it in more}
    odd = {"stride": [2, 1][:axes], "dilation": [1, 2][:axes], "padding": [1, 2][:axes], **more}
    return Op(
        lambda x, weight, bias, **numbers: like(x, weight, bias, **numbers),
        tuple(((2, 4, 9, 7)[: axes + 2], weight, (6,)) for weight in weights),
        (plain | {"groups": 2}, odd | {"groups": 2}),
        {"weight": "finite"},
        sums_products=True,
    )


def _pooled(
    like: Callable[..., torch.Tensor], x: torch.Tensor, kernel: list[int], **numbers: Any
) -> torch.Tensor:
    return like(x, kernel, **numbers)


_POOL = {"kernel": [3, 2], "stride": [2, 1], "padding": [1, 1]}
_PLANES: tuple[tuple[Shape, ...], ...] = (((2, 3, 9, 7),), ((1, 1, 3, 2),))

OPS |= {
    "group_norm": Op(
        lambda x, weight, bias, groups, eps: _group_norm(x, weight, bias, groups, eps),
        (((2, 6, 33), (6,), (6,)), ((3, 12, 5, 7), (12,), (12,))),
        ({"groups": 3, "eps": 1e-5},),
        sums_products=True,
    ),
    "max_pool2d": Op(
        lambda x, **numbers: _pooled(functional.max_pool2d, x, **numbers), _PLANES, (_POOL,)
    ),
    "avg_pool2d": Op(
        lambda x, counts_padding, **numbers: _pooled(
            functional.avg_pool2d, x, **numbers, count_include_pad=counts_padding
        ),
        _PLANES,
        (_POOL | {"counts_padding": True}, _POOL | {"counts_padding": False}),
    ),
    "upsample_nearest2d": Op(lambda x: functional.interpolate(x, size=(10, 11)), _PLANES),
    "conv1d": _convolution("conv1d", (6, 2, 1), (6, 2, 4)),
    "conv2d": _convolution("conv2d", (6, 2, 1, 1), (6, 2, 3, 2)),
    "conv_transpose1d": _convolution("conv_transpose1d", (4, 3, 4)),
    "conv_transpose2d": _convolution("conv_transpose2d", (4, 3, 3, 2)),
    "gemm": Op(
        lambda a, b, c, bias, **numbers: _gemm(a, b, c, bias, **numbers),
        (((2, 33, 33), (2, 33, 33), (2, 33, 33), (33,)), ((9, 9), (9, 9), (9, 9), (9,))),
        (
            {"alpha": 2.5, "beta": 0.0, "transpose_a": True, "transpose_b": False},
            {"alpha": 1.0, "beta": -0.3125, "transpose_a": False, "transpose_b": True,
             "function": "silu"},
            {"alpha": 0.3125, "beta": 1.0, "transpose_a": True, "transpose_b": True},
        ),
        sums_products=True,
    ),
}  # fmt: skip


OPS |= BACKWARD | ATTENTION_BACKWARD


def _product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, bias: torch.Tensor, **numbers: Any
) -> torch.Tensor:
    """Of 8 bits each, in what their products add up to: of whole numbers torch has no product on a
    GPU."""
    left = a.to(c.dtype).mT if numbers["transpose_a"] else a.to(c.dtype)
    right = b.to(c.dtype).mT if numbers["transpose_b"] else b.to(c.dtype)
    if c.is_floating_point():
        product = left @ right
    else:
        product = (left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2, dtype=c.dtype)
    return product + numbers["beta"] * c + bias


PRODUCT = replace(
    OPS["gemm"],
    like=lambda a, b, c, bias, **numbers: _product(a, b, c, bias, **numbers),
    params=(
        {"alpha": 1.0, "beta": 1, "transpose_a": True, "transpose_b": False},
        {"alpha": 1.0, "beta": 0, "transpose_a": False, "transpose_b": True},
    ),
    shapes=(*OPS["gemm"].shapes, ((64, 64), (64, 64), (64, 64), (64,))),
    kinds={"a": "code", "b": "code", "c": "sum", "bias": "sum"},
)
"""gemm of 8 bits: f8_e4m3, f8_e5m2 with float32 sums, i8 and u8 with int32 sums."""
