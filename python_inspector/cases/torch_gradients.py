"""The backward ops of the native table as torch.autograd has them, in rows as torch_ops.py has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from .torch_call import ROWS, Op, once


def _gradients(
    like: Callable[..., torch.Tensor], d_out: torch.Tensor, **operands: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Of the operands, by torch.autograd in float32, rounded once."""
    with torch.enable_grad():
        wide = {name: it.detach().float().requires_grad_() for name, it in operands.items()}
        found = torch.autograd.grad(like(**wide), list(wide.values()), d_out.to(torch.float32))
    return {
        f"d_{name}": it.to(operands[name].dtype) for name, it in zip(operands, found, strict=True)
    }


_ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
}
_FUNCTIONS = tuple({"function": name} for name in _ACTIVATIONS)
_SAME = tuple((shape,) * 2 for shape in ((3, 65), (2, 5, 33), (1,)))


def _backward(like: Callable[..., torch.Tensor], *params: Mapping[str, Any]) -> Op:
    return Op(
        lambda x, d_out, **numbers: _gradients(lambda x: like(x, **numbers), d_out, x=x),
        _SAME,
        params or ({},),
        {"x": "finite", "d_out": "finite"},
        sums_products=True,
        output="d_x",
    )


def _stored(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded as a forward op's R() does, which changes no derivative."""
    return x + (x.to(dtype).to(x.dtype) - x).detach()


def _rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, weight_offset: float, rounded: torch.dtype
) -> torch.Tensor:
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (weight_offset + weight) * _stored(normed, rounded)


def _gated_rms_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_size: int,
    rounded: torch.dtype,
) -> torch.Tensor:
    v = (x * functional.silu(gate)).unflatten(-1, (-1, group_size))
    normed = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    return weight * _stored(normed.flatten(-2), rounded)


def _rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        c, s = (t[:, None, :, : width // 2].repeat_interleave(2, -1) for t in (cos, sin))
        other = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        c, s = cos[:, None], sin[:, None]
        other = torch.cat((-turned[..., width // 2 :], turned[..., : width // 2]), -1)
    return torch.cat((turned * c + other * s, rest), -1)


def _rotated_back(
    d_out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """In the operands' dtype: the op rounds each product, as rotary does."""
    with torch.enable_grad():
        x = torch.zeros_like(d_out).requires_grad_()
        return torch.autograd.grad(_rotated(x, cos, sin, interleaved), x, d_out)[0]


def _convolved(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    rounded: torch.dtype,
    function: str = "",
) -> torch.Tensor:
    past = functional.pad(x.transpose(1, 2), (weight.shape[-1] - 1, 0))
    out = functional.conv1d(past, weight, bias, groups=weight.shape[0]).transpose(1, 2)
    return _ACTIVATIONS[function](_stored(out, rounded)) if function else out


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor, ignored: int) -> torch.Tensor:
    return functional.cross_entropy(logits.float(), labels, ignore_index=ignored).reshape(1)


def _head(
    x: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    rounded: torch.dtype,
    ignored: int,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Of a head's logits, which are stored on the way, and so are their gradients."""

    def stored(logits: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
        out = logits if value is None else logits + (value - logits).detach()
        out = _stored(out, rounded)
        if out.requires_grad:
            out.register_hook(lambda g: g.to(rounded).to(g.dtype))
        return out

    logits = stored(x @ weight.T)
    if scale != 1:
        logits = stored(logits * scale)
    if softcap is not None:
        parts = torch.tanh((logits / softcap).to(rounded).float()).to(rounded).float()
        logits = stored(torch.tanh(logits / softcap) * softcap, parts * softcap)
    return _cross_entropy(logits, labels, ignored)


def _head_gradients(
    x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, d_loss: torch.Tensor, **params: Any
) -> dict[str, torch.Tensor]:
    rounded = x.dtype
    return _gradients(
        lambda x, weight: _head(x, weight, labels, rounded, **params), d_loss, x=x, weight=weight
    )


_HEADS: tuple[Mapping[str, Any], ...] = (
    {"ignored": 1, "scale": 1.0, "softcap": None},
    {"ignored": -100, "scale": 0.3125, "softcap": 2.5},
)


BACKWARD: dict[str, Op] = {
    "activation_backward": _backward(lambda x, function: _ACTIVATIONS[function](x), *_FUNCTIONS),
    "gated_activation_backward": Op(
        lambda gate, up, d_out, function: _gradients(
            lambda gate, up: _ACTIVATIONS[function](gate) * up, d_out, gate=gate, up=up
        ),
        (((3, 65),) * 3, ((2, 5, 33),) * 3),
        _FUNCTIONS,
        dict.fromkeys(("gate", "up", "d_out"), "finite"),
        sums_products=True,
    ),
    "softcap_backward": _backward(
        lambda x, number: torch.tanh(x / number) * number, {"number": 2.5}
    ),
    "sigmoid_backward": _backward(torch.sigmoid),
    "softplus_backward": _backward(functional.softplus),
    "relu_backward": _backward(functional.relu),
    "softmax_backward": Op(
        lambda y, d_out: {
            "d_x": once(lambda p, g: torch.ops.aten._softmax_backward_data(g, p, -1, p.dtype),
                         y, d_out)
        },
        (((3, 65),) * 2, ((2, 5, 33),) * 2, ((4, 1031),) * 2),
        sums_products=True,
        output="d_x",
    ),
    "rms_norm_backward": Op(
        lambda x, weight, d_out, eps, weight_offset, rounds_before: _gradients(
            lambda x, weight: _rms_norm(
                x, weight, eps, weight_offset, d_out.dtype if rounds_before else torch.float32
            ),
            d_out, x=x, weight=weight,
        ),
        (((3, 65), (65,), (3, 65)), ((2, 33, 256), (256,), (2, 33, 256))),
        ({"eps": 1e-5, "weight_offset": 0.0, "rounds_before": True},
         {"eps": 1e-5, "weight_offset": 1.0, "rounds_before": False}),
        dict.fromkeys(("x", "weight", "d_out"), "finite"),
        sums_products=True,
    ),
    "layer_norm_backward": Op(
        lambda x, weight, d_out, eps: _gradients(
            lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias, eps),
            d_out, x=x, weight=weight, bias=torch.zeros_like(weight),
        ),
        (((3, 65), (65,), (3, 65)), ((2, 33, 256), (256,), (2, 33, 256))),
        ({"eps": 1e-5},),
        dict.fromkeys(("x", "weight", "d_out"), "finite"),
        sums_products=True,
    ),
    "gated_rms_norm_backward": Op(
        lambda x, gate, weight, d_out, eps, group_size: _gradients(
            lambda x, gate, weight: _gated_rms_norm(
                x, gate, weight, eps, group_size, d_out.dtype
            ),
            d_out, x=x, gate=gate, weight=weight,
        ),
        (((3, 64), (3, 64), (64,), (3, 64)), ((2, 5, 96), (2, 5, 96), (96,), (2, 5, 96))),
        ({"eps": 1e-5, "group_size": 32},),
        dict.fromkeys(("x", "gate", "weight", "d_out"), "finite"),
        sums_products=True,
    ),
    "embedding_backward": Op(
        lambda d_out, ids, scale, padding: {
            "d_weight": once(
                lambda g: torch.ops.aten.embedding_dense_backward(g, ids, ROWS, padding, False)
                * scale,
                d_out,
            )
        },
        (((2, 5, 33), (2, 5)), ((2, 64, 7), (2, 64))),
        ({"scale": 1.0, "padding": -1}, {"scale": 2.0, "padding": 1}),
        {"ids": "rows", "d_out": "finite"},
        sums_products=True,
        output="d_weight",
    ),
    "rotary_backward": Op(
        lambda d_out, cos, sin, interleaved: _rotated_back(d_out, cos, sin, interleaved),
        (((2, 3, 5, 16), (2, 5, 8), (2, 5, 8)),),
        ({"interleaved": False}, {"interleaved": True}),
        dict.fromkeys(("d_out", "cos", "sin"), "finite"),
        sums_products=True,
        output="d_x",
    ),
    "cross_entropy": Op(
        lambda logits, labels, ignored: {"loss": _cross_entropy(logits, labels, ignored)},
        (((9, 11), (9,)), ((5, 257), (5,))),
        ({"ignored": 1}, {"ignored": -100}),
        {"labels": "classes", "logits": "finite"},
        sums_products=True,
        output="loss",
    ),
    "cross_entropy_backward": Op(
        lambda logits, labels, d_loss, ignored: _gradients(
            lambda logits: _cross_entropy(logits, labels, ignored), d_loss, logits=logits
        ),
        (((9, 11), (9,), (1,)), ((5, 257), (5,), (1,))),
        ({"ignored": 1}, {"ignored": -100}),
        {"labels": "classes", "logits": "finite", "d_loss": "wide"},
        sums_products=True,
        output="d_logits",
    ),
    "linear_cross_entropy": Op(
        lambda x, weight, labels, **numbers: {
            "loss": _head(x.float(), weight.float(), labels, x.dtype, **numbers)
        },
        (((9, 33), (11, 33), (9,)), ((5, 64), (257, 64), (5,))),
        _HEADS,
        {"labels": "outputs", "x": "small", "weight": "small"},
        sums_products=True,
        output="loss",
    ),
    "linear_cross_entropy_backward": Op(
        _head_gradients,
        (((9, 33), (11, 33), (9,), (1,)), ((5, 64), (257, 64), (5,), (1,))),
        _HEADS,
        {"labels": "outputs", "x": "small", "weight": "small", "d_loss": "wide"},
        sums_products=True,
    ),
    "causal_conv1d_backward": Op(
        lambda x, weight, bias, d_out, **numbers: _gradients(
            lambda x, weight, bias: _convolved(x, weight, bias, d_out.dtype, **numbers),
            d_out, x=x, weight=weight, bias=bias,
        ),
        (((2, 7, 33), (33, 1, 4), (33,), (2, 7, 33)), ((1, 2, 9), (9, 1, 3), (9,), (1, 2, 9))),
        ({}, {"function": "silu"}),
        dict.fromkeys(("x", "weight", "bias", "d_out"), "finite"),
        sums_products=True,
    ),
    "linear_backward": Op(
        lambda x, weight, d_out: _gradients(
            lambda x, weight, bias: functional.linear(x, weight, bias),
            d_out, x=x, weight=weight, bias=torch.zeros_like(weight[:, 0]),
        ),
        (((3, 65), (33, 65), (3, 33)), ((2, 5, 129), (8, 129), (2, 5, 8))),
        ({},),
        dict.fromkeys(("x", "weight", "d_out"), "finite"),
        sums_products=True,
    ),
    "matmul_backward": Op(
        lambda a, b, d_out, transpose_b: _gradients(
            lambda a, b: a @ (b.transpose(-1, -2) if transpose_b else b).repeat_interleave(
                a.shape[1] // b.shape[1], 1
            ),
            d_out, a=a, b=b,
        ),
        (((2, 4, 9, 33), (2, 2, 33, 33), (2, 4, 9, 33)),),
        ({"transpose_b": False}, {"transpose_b": True}),
        dict.fromkeys(("a", "b", "d_out"), "finite"),
        sums_products=True,
    ),
}  # fmt: skip
