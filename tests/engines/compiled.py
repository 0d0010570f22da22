"""torch.compile of transformers' own functions: inductor fuses them and rounds once."""

from __future__ import annotations

import shutil
from functools import lru_cache
from typing import Any

import torch

from .float32_inside import ACTIVATIONS
from .kernel import Case, Kernel, Result, allowed, repeated, require, rotate_half

if shutil.which("g++") is None and shutil.which("clang++") is None:
    raise ImportError("inductor needs a C++ compiler")


@lru_cache
def _compiled(function: Any) -> Any:
    return torch.compile(function, dynamic=True)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """LlamaRMSNorm.forward."""
    wide = x.to(torch.float32)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def _norm_gemma(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Gemma2RMSNorm.forward."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (normed * (1.0 + weight.float())).type_as(x)


def rms_norm(case: Case) -> Result:
    function = _norm_gemma if case.params["weight_offset"] else _norm
    return _compiled(function)(case["x"], case["weight"], case.params["eps"])


def _rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """apply_rotary_pos_emb."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def rotary(case: Case) -> Result:
    q, k = _compiled(_rotary)(*(case[name] for name in ("q", "k", "cos", "sin")))
    return {"q": q, "k": k}


def _silu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return ACTIVATIONS["silu"](gate) * up


def _gelu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return ACTIVATIONS["gelu"](gate) * up


def _gelu_tanh(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return ACTIVATIONS["gelu_pytorch_tanh"](gate) * up


def glu_activation(case: Case) -> Result:
    functions = {"silu": _silu, "gelu": _gelu, "gelu_pytorch_tanh": _gelu_tanh}
    function = functions.get(case.params["function"])
    require(function is not None, f"no test of {case.params['function']}")
    return _compiled(function)(case["gate"], case["up"])


def _softcap(x: torch.Tensor, cap: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x / cap) * cap


def softcap(case: Case) -> Result:
    return _compiled(_softcap)(case["x"], torch.tensor(case.params["cap"]))


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """eager_attention_forward, without the softcap."""
    scores = torch.matmul(q, k.transpose(2, 3)) * scale + mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def sdpa(case: Case) -> Result:
    require(not case.params["softcap"], "no test with softcap")
    k, v = repeated(case)
    seen = allowed(case)
    mask = torch.zeros(1, 1, case["q"].shape[2], k.shape[2], dtype=case.dtype)
    if seen is not None:
        mask = torch.zeros(seen.shape, dtype=case.dtype)
        mask = mask.masked_fill(~seen, torch.finfo(case.dtype).min)
    return _compiled(_attention)(case["q"], k, v, mask, case.params["scale"])


def kernels() -> list[Kernel]:
    runs = [
        ("rms_norm", rms_norm), ("rotary", rotary), ("glu_activation", glu_activation),
        ("softcap", softcap), ("sdpa", sdpa),
    ]  # fmt: skip
    return [Kernel("torch.compile", block, "inductor", run) for block, run in runs]
