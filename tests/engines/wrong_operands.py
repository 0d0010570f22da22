"""Mistakes that any kernel can make: it is given operands or parameters that are slightly wrong.

Each takes a case and returns the one that a wrong kernel computes, or None where the case cannot
show it. What a mistake leaves bit-equal is not judged (table.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from .kernel import Case, allowed

Mistake = Callable[[Case], Case | None]


def eps_times_10(case: Case) -> Case:
    return case.with_params(eps=10 * case.params["eps"])


def offset_missing(case: Case) -> Case | None:
    return case.with_params(weight_offset=0) if case.params["weight_offset"] else None


def weight_shifted(case: Case) -> Case:
    return case.with_weights(weight=case["weight"].roll(1, 0))


def theta_10001(case: Case) -> Case | None:
    """Frequencies of a base larger by 1e-4, as 10001 is than 10000."""
    if case.angles is None:
        return None
    count = case.angles.inv_freq.numel()
    factor = 1.0001 ** -(torch.arange(count, dtype=torch.float64) / count)
    inv_freq = (case.angles.inv_freq.double() * factor).float()
    return _with_table(case, replace(case.angles, inv_freq=inv_freq))


def positions_plus_1(case: Case) -> Case | None:
    if case.angles is None:
        return None
    return _with_table(case, replace(case.angles, positions=case.angles.positions + 1))


def sine_negated(case: Case) -> Case:
    turned = case.with_inputs(sin=-case["sin"]) if "sin" in case.inputs else case
    if case.angles is None:
        return turned
    return replace(turned, angles=replace(case.angles, inv_freq=-case.angles.inv_freq))


def _with_table(case: Case, angles: object) -> Case:
    changed = replace(case, angles=angles)
    if "cos" not in case.inputs:
        return changed
    cos, sin = table(changed)
    return changed.with_inputs(cos=cos.to(case["cos"].dtype), sin=sin.to(case["sin"].dtype))


def table(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin in float32 as transformers makes them, before they are rounded to storage."""
    angles = case.angles
    assert angles is not None
    half = angles.positions.float()[..., None] * angles.inv_freq.float()
    both = torch.cat([half, half], -1)
    return both.cos() * angles.scaling, both.sin() * angles.scaling


def swapped(case: Case) -> Case:
    return case.with_inputs(gate=case["up"], up=case["gate"])


def projections_swapped(case: Case) -> Case | None:
    if "gate_proj.weight" not in case.weights:
        return None
    gate, up = case["gate_proj.weight"], case["up_proj.weight"]
    return case.with_weights(**{"gate_proj.weight": up, "up_proj.weight": gate})


def other_function(case: Case) -> Case | None:
    """The other form of GELU; for SiLU, which has one form, GELU."""
    others = {"gelu_pytorch_tanh": "gelu", "gelu": "gelu_pytorch_tanh", "silu": "gelu"}
    other = others.get(case.params["function"])
    return case.with_params(function=other) if other else None


def cap_29_of_30(case: Case) -> Case | None:
    name = "cap" if "cap" in case.params else "softcap"
    cap = case.params.get(name)
    return case.with_params(**{name: cap * 29 / 30}) if cap else None


def scale_times_1_01(case: Case) -> Case:
    return case.with_params(scale=1.01 * case.params["scale"])


def window_plus_1(case: Case) -> Case | None:
    window = case.params["window"]
    return case.with_params(window=window + 1) if window else None


def window_minus_1(case: Case) -> Case | None:
    window = case.params["window"]
    return case.with_params(window=window - 1) if window and window > 1 else None


def not_causal(case: Case) -> Case | None:
    return case.with_params(causal=False) if case.params["causal"] else None


def last_key_dropped(case: Case) -> Case | None:
    """The last key's slot is never read: of a tail that is one short."""
    seen = allowed(case)
    keys = case["k"].shape[2]
    if keys < 2:
        return None
    shape = (1, 1, case["q"].shape[2], keys)
    mask = torch.ones(shape, dtype=torch.bool) if seen is None else seen.clone()
    mask[..., -1] = False
    if not bool(mask.any(-1).all()):
        return None
    return case.with_inputs(mask=mask)


def heads_interleaved(case: Case) -> Case | None:
    """Query head h uses key head h mod Hkv instead of h / (H / Hkv)."""
    heads, kv_heads = case["q"].shape[1], case["k"].shape[1]
    if kv_heads in (1, heads):
        return None
    order = torch.arange(heads) % kv_heads
    return case.with_inputs(k=case["k"][:, order], v=case["v"][:, order])


def last_channel_dropped(case: Case) -> Case:
    name = "x" if "x" in case.inputs else "hidden"
    x = case[name].clone()
    x[..., -1] = 0
    return case.with_inputs(**{name: x})


def bias_missing(case: Case) -> Case | None:
    bias = case.get("bias")
    return None if bias is None else case.with_weights(bias=torch.zeros_like(bias))


MISTAKES: Mapping[str, tuple[Mistake, ...]] = {
    "rms_norm": (eps_times_10, offset_missing, weight_shifted),
    "rotary": (theta_10001, positions_plus_1, sine_negated),
    "rotary_positions": (theta_10001, positions_plus_1, sine_negated),
    "glu_activation": (swapped, other_function),
    "activation": (other_function,),
    "softcap": (cap_29_of_30,),
    "sdpa": (
        scale_times_1_01, window_plus_1, window_minus_1, not_causal, last_key_dropped,
        cap_29_of_30, heads_interleaved,
    ),
    "linear": (last_channel_dropped, bias_missing),
    "glu_mlp": (projections_swapped, other_function, last_channel_dropped),
    "lm_head": (last_channel_dropped, cap_29_of_30),
}  # fmt: skip
