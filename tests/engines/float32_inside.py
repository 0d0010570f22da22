"""float32 inside and one rounding at the end, in torch and NumPy: how most fused kernels round."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from .kernel import Case, Kernel, Result, allowed, repeated, rotate_half
from .wrong_operands import table

ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
}


def rms_norm(case: Case) -> Result:
    x = case["x"].float()
    root = torch.rsqrt(x.square().mean(-1, keepdim=True) + case.params["eps"])
    weight = case.params["weight_offset"] + case["weight"].float()
    return (x * root * weight).to(case.dtype)


def rms_norm_stored_weight(case: Case) -> Result:
    """1 + w is folded into the weights ahead of time, and stored in 16 bits like any weight."""
    x = case["x"].float()
    root = torch.rsqrt(x.square().mean(-1, keepdim=True) + case.params["eps"])
    weight = case["weight"] + case.params["weight_offset"]
    return (x * root * weight.float()).to(case.dtype)


def rms_norm_numpy(case: Case) -> Result:
    x = case["x"].float().numpy()
    mean = np.mean(x * x, axis=-1, keepdims=True) + np.float32(case.params["eps"])
    weight = np.float32(case.params["weight_offset"]) + case["weight"].float().numpy()
    return torch.from_numpy(x / np.sqrt(mean) * weight).to(case.dtype)


def rotary(case: Case) -> Result:
    return turned(case, case["cos"].float(), case["sin"].float())


def turned(case: Case, cos: torch.Tensor, sin: torch.Tensor) -> Result:
    """q and k rotated in float32 and rounded once."""

    def turn(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * cos[:, None] + rotate_half(wide) * sin[:, None]).to(x.dtype)

    return {"q": turn(case["q"]), "k": turn(case["k"])}


def rotary_own_table(case: Case) -> Result:
    """cos and sin are made in float32 and never rounded."""
    from .kernel import require

    require(case.angles is not None, "no positions with this table")
    return turned(case, *table(case))


def glu_activation(case: Case) -> Result:
    wide = ACTIVATIONS[case.params["function"]](case["gate"].float()) * case["up"].float()
    return wide.to(case.dtype)


def activation(case: Case) -> Result:
    return ACTIVATIONS[case.params["function"]](case["x"].float()).to(case.dtype)


def softcap(case: Case) -> Result:
    cap = case.params["cap"]
    return (torch.tanh(case["x"].float() / cap) * cap).to(case.dtype)


def sdpa(case: Case) -> Result:
    return attention(case).to(case.dtype)


def scores(case: Case) -> torch.Tensor:
    """Scaled, capped and masked, in float32."""
    k, _ = repeated(case)
    found = case["q"].float() @ k.float().transpose(2, 3) * case.params["scale"]
    cap = case.params["softcap"]
    if cap:
        found = torch.tanh(found / cap) * cap
    mask = allowed(case)
    return found if mask is None else found.masked_fill(~mask, torch.finfo(torch.float32).min)


def attention(case: Case) -> torch.Tensor:
    _, v = repeated(case)
    return (torch.softmax(scores(case), -1) @ v.float()).transpose(1, 2)


def sdpa_rounded_weights(case: Case) -> Result:
    """The probabilities are rounded before the second product, as tensor cores read them."""
    _, v = repeated(case)
    p = torch.softmax(scores(case), -1).to(case.dtype)
    return (p.float() @ v.float()).transpose(1, 2).to(case.dtype)


def sdpa_flash(case: Case, keys: int = 64) -> Result:
    """Flash attention: blocks of keys, a running maximum, weights rounded, divided at the end."""
    _, v = repeated(case)
    s = scores(case)
    shape = (*s.shape[:3], 1)
    top = torch.full(shape, torch.finfo(torch.float32).min)
    total, out = torch.zeros(shape), torch.zeros(*s.shape[:3], v.shape[-1])
    for begin in range(0, s.shape[-1], keys):
        block = s[..., begin : begin + keys]
        higher = torch.maximum(top, block.amax(-1, keepdim=True))
        weights = torch.exp(block - higher)
        shrink = torch.exp(top - higher)
        total = total * shrink + weights.sum(-1, keepdim=True)
        stored = weights.to(case.dtype).float()
        out = out * shrink + stored @ v[:, :, begin : begin + keys].float()
        top = higher
    return (out / total).transpose(1, 2).to(case.dtype)


def linear(case: Case) -> Result:
    bias = case.get("bias")
    out = case["x"].float() @ case["weight"].float().T
    return (out if bias is None else out + bias.float()).to(case.dtype)


def projections(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up in float32, before any rounding."""
    x = case["hidden"].float()
    packed = case.get("gate_up_proj.weight")
    if packed is not None:
        gate, up = (x @ packed.float().T).chunk(2, -1)
        return gate, up
    found = []
    for name in ("gate_proj", "up_proj"):
        bias = case.get(f"{name}.bias")
        out = x @ case[f"{name}.weight"].float().T
        found.append(out if bias is None else out + bias.float())
    return found[0], found[1]


def down(case: Case, wide: torch.Tensor) -> torch.Tensor:
    bias = case.get("down_proj.bias")
    out = wide @ case["down_proj.weight"].float().T
    return (out if bias is None else out + bias.float()).to(case.dtype)


def glu_mlp(case: Case) -> Result:
    """The activation is fused behind the first products: neither gate nor up is stored."""
    gate, up = projections(case)
    wide = ACTIVATIONS[case.params["function"]](gate) * up
    return down(case, wide.to(case.dtype).float())


def glu_mlp_stored_gate(case: Case) -> Result:
    """Gate and up are stored; the activation and its product are one kernel."""
    gate, up = (each.to(case.dtype).float() for each in projections(case))
    wide = ACTIVATIONS[case.params["function"]](gate) * up
    return down(case, wide.to(case.dtype).float())


def lm_head(case: Case) -> Result:
    keep = int(case.params["logits_to_keep"])
    hidden = case["hidden"][:, -keep:] if keep else case["hidden"]
    out = hidden.float() @ case["weight"].float().T
    bias, cap = case.get("bias"), case.params["softcap"]
    out = out if bias is None else out + bias.float()
    return (torch.tanh(out / cap) * cap if cap else out).to(case.dtype)


def kernels() -> list[Kernel]:
    blocks = {
        "rms_norm": (rms_norm, rms_norm_stored_weight, rms_norm_numpy),
        "rotary": (rotary, rotary_own_table),
        "glu_activation": (glu_activation,),
        "activation": (activation,),
        "softcap": (softcap,),
        "sdpa": (sdpa, sdpa_rounded_weights, sdpa_flash),
        "linear": (linear,),
        "glu_mlp": (glu_mlp, glu_mlp_stored_gate),
        "lm_head": (lm_head,),
    }
    return [
        Kernel("float32", block, run.__name__, run, of_inputs=run is not rotary_own_table)
        for block, runs in blocks.items()
        for run in runs
    ]
