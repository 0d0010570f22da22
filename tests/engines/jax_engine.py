"""JAX on the CPU: norms, rotary, MLPs and attention as its users write them, jitted by XLA."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

from .kernel import Case, Kernel, Result, allowed, require
from .wrong_operands import table

jax.config.update("jax_platforms", "cpu")
ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "tanh": jnp.tanh,
}


def given(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        bits = tensor.contiguous().view(torch.int16).numpy()
        return jax.lax.bitcast_convert_type(jnp.asarray(bits), jnp.bfloat16)
    return jnp.asarray(tensor.contiguous().numpy())


def taken(array: Any) -> torch.Tensor:
    if array.dtype == jnp.bfloat16:
        bits = jax.lax.bitcast_convert_type(array, jnp.int16)
        return torch.from_dlpack(bits).clone().view(torch.bfloat16)
    return torch.from_dlpack(array).clone()


@jax.jit
def _rms_norm(x: Any, weight: Any, eps: Any, offset: Any) -> Any:
    """MaxText's and Gemma's form: float32 inside, rounded once."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(jnp.square(wide), -1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + eps) * (offset + weight.astype(jnp.float32))).astype(
        x.dtype
    )


@jax.jit
def _rms_norm_cast(x: Any, weight: Any, eps: Any, offset: Any) -> Any:
    """Flax's form of LLaMA: cast, then times the weight."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(jnp.square(wide), -1, keepdims=True)
    normed = (wide * jax.lax.rsqrt(mean + eps)).astype(x.dtype)
    return normed * (offset.astype(x.dtype) + weight)


def rms_norm(function: Any, case: Case) -> Result:
    eps, offset = (jnp.float32(case.params[name]) for name in ("eps", "weight_offset"))
    return taken(function(given(case["x"]), given(case["weight"]), eps, offset))


@jax.jit
def _rotary(x: Any, cos: Any, sin: Any) -> Any:
    first, second = jnp.split(x, 2, -1)
    rotated = jnp.concatenate([-second, first], -1)
    return (x * cos[:, None] + rotated * sin[:, None]).astype(x.dtype)


def rotary(case: Case) -> Result:
    cos, sin = given(case["cos"]), given(case["sin"])
    return {name: taken(_rotary(given(case[name]), cos, sin)) for name in ("q", "k")}


def rotary_own_table(case: Case) -> Result:
    require(case.angles is not None, "no positions with this table")
    cos, sin = (given(each) for each in table(case))
    return {name: taken(_rotary(given(case[name]), cos, sin)) for name in ("q", "k")}


@partial(jax.jit, static_argnums=2)
def _glu(gate: Any, up: Any, function: str) -> Any:
    return ACTIVATIONS[function](gate) * up


def glu_activation(case: Case) -> Result:
    return taken(_glu(given(case["gate"]), given(case["up"]), case.params["function"]))


def glu_activation_eager(case: Case) -> Result:
    """Without jit every operation of SiLU is a kernel of its own and stores what it computes."""
    with jax.disable_jit():
        out = ACTIVATIONS[case.params["function"]](given(case["gate"])) * given(case["up"])
    return taken(out)


@partial(jax.jit, static_argnums=1)
def _activation(x: Any, function: str) -> Any:
    return ACTIVATIONS[function](x)


def activation(case: Case) -> Result:
    return taken(_activation(given(case["x"]), case.params["function"]))


@jax.jit
def _softcap(x: Any, cap: Any) -> Any:
    return jnp.tanh(x / cap) * cap


def softcap(case: Case) -> Result:
    x = given(case["x"])
    return taken(_softcap(x, jnp.asarray(case.params["cap"], x.dtype)))


def sdpa(case: Case) -> Result:
    require(not case.params["softcap"], "jax.nn.dot_product_attention has no softcap")
    q, k, v = (given(case[name].transpose(1, 2)) for name in ("q", "k", "v"))
    mask = allowed(case)
    out = jax.nn.dot_product_attention(
        q, k, v, scale=case.params["scale"], mask=None if mask is None else given(mask)
    )
    return taken(out)


@jax.jit
def _linear(x: Any, weight: Any) -> Any:
    return x @ weight.T


def linear(case: Case) -> Result:
    require(case.get("bias") is None, "with a bias it is two operations")
    return taken(_linear(given(case["x"]), given(case["weight"])))


@partial(jax.jit, static_argnums=4)
def _mlp(x: Any, gate: Any, up: Any, down: Any, function: str) -> Any:
    return (ACTIVATIONS[function](x @ gate.T) * (x @ up.T)) @ down.T


def glu_mlp(case: Case) -> Result:
    require("gate_proj.weight" in case.weights, "packed weights")
    require(len(case.weights) == 3, "with biases")
    weights = [given(case[f"{name}_proj.weight"]) for name in ("gate", "up", "down")]
    return taken(_mlp(given(case["hidden"]), *weights, case.params["function"]))


def kernels() -> list[Kernel]:
    runs = [
        ("rms_norm", "float32 inside", partial(rms_norm, _rms_norm)),
        ("rms_norm", "cast before the weight", partial(rms_norm, _rms_norm_cast)),
        ("rotary", "jit", rotary),
        ("rotary", "jit, own table", rotary_own_table),
        ("glu_activation", "jit", glu_activation),
        ("glu_activation", "without jit", glu_activation_eager),
        ("activation", "jit", activation),
        ("softcap", "jit", softcap),
        ("sdpa", "dot_product_attention", sdpa),
        ("linear", "jit", linear),
        ("glu_mlp", "jit", glu_mlp),
    ]
    return [
        Kernel("jax", block, name, run, of_inputs="own table" not in name)
        for block, name, run in runs
    ]
