"""MLX on the CPU: mx.fast.rms_norm, rope and scaled_dot_product_attention, and mlx.nn's MLP."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import torch

from .kernel import Case, Kernel, Result, allowed, require

mx.set_default_device(mx.cpu)
ACTIVATIONS = {
    "silu": nn.silu,
    "gelu": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "tanh": mx.tanh,
}


def given(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        return mx.array(tensor.contiguous().view(torch.int16).numpy()).view(mx.bfloat16)
    return mx.array(tensor.contiguous().numpy())


def taken(array: Any) -> torch.Tensor:
    import numpy as np

    if array.dtype == mx.bfloat16:
        bits = np.array(mx.contiguous(array).view(mx.int16))
        return torch.from_numpy(bits).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def rms_norm(case: Case) -> Result:
    weight = given(case["weight"])
    offset = case.params["weight_offset"]
    weight = weight + offset if offset else weight  # mlx-lm: mx.fast.rms_norm(x, 1 + w, eps)
    return taken(mx.fast.rms_norm(given(case["x"]), weight, case.params["eps"]))


def rotary(case: Case) -> Result:
    require(case.angles is not None, "no positions with this table")
    assert case.angles is not None
    require(case.params["style"] == "half", "interleaved")
    require(case.angles.scaling == 1, "scaled tables")
    first = case.angles.positions[:, 0]
    count = case.angles.positions.shape[1]
    steps = torch.arange(count)
    require(bool((case.angles.positions == first[:, None] + steps).all()), "padded positions")
    require(bool((first == first[0]).all()), "an offset for each row")
    periods = given(1 / case.angles.inv_freq.float())

    def turn(x: torch.Tensor) -> torch.Tensor:
        return taken(
            mx.fast.rope(
                given(x), x.shape[-1], traditional=False, base=None, scale=1.0,
                offset=int(first[0]), freqs=periods,
            )
        )  # fmt: skip

    return {"q": turn(case["q"]), "k": turn(case["k"])}


def glu_activation(case: Case) -> Result:
    return taken(ACTIVATIONS[case.params["function"]](given(case["gate"])) * given(case["up"]))


def activation(case: Case) -> Result:
    return taken(ACTIVATIONS[case.params["function"]](given(case["x"])))


def softcap(case: Case) -> Result:
    """mlx-lm's Gemma2: tanh(x / cap) * cap."""
    cap = case.params["cap"]
    return taken(mx.tanh(given(case["x"]) / cap) * cap)


def sdpa(case: Case) -> Result:
    require(not case.params["softcap"], "mx.fast.scaled_dot_product_attention has no softcap")
    mask = allowed(case)
    out = mx.fast.scaled_dot_product_attention(
        *(given(case[name]) for name in ("q", "k", "v")),
        scale=case.params["scale"],
        mask=None if mask is None else given(mask),
    )
    return taken(out).transpose(1, 2)


def linear(case: Case) -> Result:
    bias = case.get("bias")
    x, weight = given(case["x"]), given(case["weight"])
    return taken(x @ weight.T if bias is None else mx.addmm(given(bias), x, weight.T))


def glu_mlp(case: Case) -> Result:
    require("gate_proj.weight" in case.weights and len(case.weights) == 3, "packed or with biases")
    x = given(case["hidden"])
    gate, up, down = (given(case[f"{name}_proj.weight"]) for name in ("gate", "up", "down"))
    return taken((ACTIVATIONS[case.params["function"]](x @ gate.T) * (x @ up.T)) @ down.T)


def kernels() -> list[Kernel]:
    runs = [
        ("rms_norm", "mx.fast.rms_norm", rms_norm),
        ("rotary", "mx.fast.rope, own table", rotary),
        ("glu_activation", "mlx.nn", glu_activation),
        ("activation", "mlx.nn", activation),
        ("softcap", "mlx-lm", softcap),
        ("sdpa", "mx.fast.sdpa", sdpa),
        ("linear", "addmm", linear),
        ("glu_mlp", "mlx.nn", glu_mlp),
    ]
    return [
        Kernel("mlx", block, name, run, of_inputs="own table" not in name)
        for block, name, run in runs
    ]
