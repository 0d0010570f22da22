"""Backwards of blocks written by hand, each right and with one fault, as verify() takes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]
Kernel = Callable[[Tensors, Tensors, dict[str, Any]], Any]
"""Of a backward: operands and cotangents, weights, params to gradients."""


def rms_norm(inputs: Tensors, weights: Tensors, params: dict[str, Any], mean: float = 1.0) -> Any:
    """`mean`: of the term that goes through the mean of squares."""
    x, g = inputs["x"].float(), inputs["cotangent.out"].float()
    weight = weights["weight"].float() + params["weight_offset"]
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + params["eps"])
    normed, scaled = x * rstd, g * weight
    if params["rounding"] == "before":
        normed = normed.to(inputs["x"].dtype).float()
    dx = rstd * (scaled - mean * normed * (scaled * normed).mean(-1, keepdim=True))
    return {"d_x": dx, "d_weight": (g * normed).flatten(0, -2).sum(0)}


def glu(inputs: Tensors, weights: Tensors, params: dict[str, Any], slope: float = 1.0) -> Any:
    """`slope`: of the term x s (1 - s)."""
    gate, up, g = (inputs[name].float() for name in ("gate", "up", "cotangent.out"))
    if params["function"] != "silu":
        gate = gate.requires_grad_()
        approximate = "tanh" if params["function"].endswith("tanh") else "none"
        with torch.enable_grad():
            y = torch.nn.functional.gelu(gate, approximate=approximate)
        (derived,) = torch.autograd.grad(y.sum(), gate)
        return {"d_gate": g * up * (derived * slope), "d_up": g * y.detach()}
    s = gate.sigmoid()
    return {"d_gate": g * up * s * (1 + slope * gate * (1 - s)), "d_up": g * gate * s}


def softcap(inputs: Tensors, weights: Tensors, params: dict[str, Any], derived: bool = True) -> Any:
    t = (inputs["x"].float() / params["cap"]).tanh()
    g = inputs["cotangent.out"].float()
    return g * (1 - t * t) if derived else g


def rotary(inputs: Tensors, weights: Tensors, params: dict[str, Any], sign: int = -1) -> Any:
    """`sign`: the direction of the rotation, forward's is 1."""

    def half(t: torch.Tensor) -> torch.Tensor:
        a, b = t.chunk(2, -1)
        return torch.cat([-b, a], -1)

    cos, sin = (inputs[name].float()[:, None] for name in ("cos", "sin"))
    made = {}
    for name in ("q", "k"):
        g = inputs[f"cotangent.{name}"].float()
        turned = half(g) * sin if sign > 0 else -half(g * sin)
        made[f"d_{name}"] = (g * cos) + turned
    return made


def repeat_kv(
    inputs: Tensors, weights: Tensors, params: dict[str, Any], first: bool = False
) -> Any:
    """`first`: that of the first head of a group alone."""
    g = inputs["cotangent.out"]
    each = g.float().unflatten(1, (-1, params["repeats"]))
    return each[:, :, 0] if first else each.sum(2)


def linear(inputs: Tensors, weights: Tensors, params: dict[str, Any], short: int = 0) -> Any:
    """`short`: tokens that the weight's gradient lacks."""
    x, g = (inputs[name].flatten(0, -2).float() for name in ("x", "cotangent.out"))
    dx = (g @ weights["weight"].float()).view(inputs["x"].shape)
    end = len(x) - short
    made = {"d_x": dx, "d_weight": g[:end].T @ x[:end]}
    return made | ({"d_bias": g[:end].sum(0)} if "bias" in weights else {})


FAULTS: dict[str, tuple[str, Kernel, Kernel]] = {
    "the mean term of rms_norm is missing": (
        "rms_norm", rms_norm, partial(rms_norm, mean=0.0)),
    "silu' has no term of x": ("glu_activation", glu, partial(glu, slope=0.0)),
    "softcap has no derivative": ("softcap", softcap, partial(softcap, derived=False)),
    "rotary turns as the forward does": ("rotary", rotary, partial(rotary, sign=1)),
    "one head of a group": ("repeat_kv", repeat_kv, partial(repeat_kv, first=True)),
    "the last token of a weight": ("linear", linear, partial(linear, short=1)),
}  # fmt: skip
