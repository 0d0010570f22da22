"""Kernels that are right but for their arithmetic, which is less accurate than the reference's."""

from __future__ import annotations

import torch

from .float32_inside import ACTIVATIONS, projections, scores
from .kernel import Case, Kernel, Result, repeated


def narrow(case: Case) -> torch.dtype:
    """16 bits: the recording's own, bf16 where that is float32."""
    return torch.bfloat16 if case.dtype == torch.float32 else case.dtype


def statistics_in_16_bits(case: Case) -> Result:
    x = case["x"].float()
    mean = x.square().mean(-1, keepdim=True).to(narrow(case)).float()
    weight = case.params["weight_offset"] + case["weight"].float()
    return (x * torch.rsqrt(mean + case.params["eps"]) * weight).to(case.dtype)


def norm_composed_in_16_bits(case: Case) -> Result:
    """Every operation stores what it computes: no float32 anywhere."""
    x = case["x"].to(narrow(case))
    root = torch.rsqrt(x.square().mean(-1, keepdim=True) + case.params["eps"])
    return (x * root * (case["weight"].to(x.dtype) + case.params["weight_offset"])).to(case.dtype)


def accumulates_in_16_bits(case: Case) -> Result:
    """Partial sums over 32 channels each, added up in 16 bits."""
    x, weight = case["x"].float(), case["weight"].float()
    total = torch.zeros(*x.shape[:-1], weight.shape[0], dtype=narrow(case))
    for begin in range(0, x.shape[-1], 32):
        part = x[..., begin : begin + 32] @ weight[:, begin : begin + 32].T
        total = (total.float() + part).to(total.dtype)
    bias = case.get("bias")
    return (total.float() + (0 if bias is None else bias.float())).to(case.dtype)


def softmax_in_16_bits(case: Case) -> Result:
    _, v = repeated(case)
    found = scores(case)
    s = found.clamp_min(-3e38).to(narrow(case))
    s = s.masked_fill(found <= torch.finfo(torch.float32).min, float("-inf"))
    weights = (s - s.amax(-1, keepdim=True)).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights.float() @ v.float()).transpose(1, 2).to(case.dtype)


def output_in_16_bits(case: Case) -> Result:
    """The sums over keys are kept in 16 bits between blocks of 32."""
    _, v = repeated(case)
    p = torch.softmax(scores(case), -1)
    total = torch.zeros(*p.shape[:3], v.shape[-1], dtype=narrow(case))
    for begin in range(0, p.shape[-1], 32):
        part = p[..., begin : begin + 32] @ v[:, :, begin : begin + 32].float()
        total = (total.float() + part).to(total.dtype)
    return total.transpose(1, 2).to(case.dtype)


def activation_through_16_bits(case: Case) -> Result:
    """The activation's argument comes out of a table of 8 bits of mantissa."""
    gate = case["gate"].float()
    coarse = gate.to(torch.bfloat16).float() if case.dtype != torch.bfloat16 else _seven(gate)
    return (ACTIVATIONS[case.params["function"]](coarse) * case["up"].float()).to(case.dtype)


def _seven(x: torch.Tensor) -> torch.Tensor:
    """x with seven significant bits, one less than bf16 has."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 128).round() / 128, exponent)


def hidden_in_8_bits_fewer(case: Case) -> Result:
    """gate * up is stored once more, in bf16 with a bit less."""
    gate, up = projections(case)
    wide = _seven(ACTIVATIONS[case.params["function"]](gate) * up)
    bias = case.get("down_proj.bias")
    out = wide @ case["down_proj.weight"].float().T
    return (out if bias is None else out + bias.float()).to(case.dtype)


def kernels() -> list[Kernel]:
    blocks = {
        "rms_norm": (statistics_in_16_bits, norm_composed_in_16_bits),
        "linear": (accumulates_in_16_bits,),
        "sdpa": (softmax_in_16_bits, output_in_16_bits),
        "glu_activation": (activation_through_16_bits,),
        "glu_mlp": (hidden_in_8_bits_fewer,),
    }
    return [
        Kernel("wrong", block, run.__name__, run) for block, runs in blocks.items() for run in runs
    ]
