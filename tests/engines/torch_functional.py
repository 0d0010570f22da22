"""torch's own fused functions: rms_norm, scaled_dot_product_attention, silu and gelu, linear."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from .float32_inside import ACTIVATIONS
from .kernel import Case, Kernel, Result, allowed, repeated, require


def rms_norm(case: Case) -> Result:
    weight = case["weight"] + case.params["weight_offset"]
    return functional.rms_norm(case["x"], (case["x"].shape[-1],), weight, case.params["eps"])


def sdpa(backend: SDPBackend) -> Callable[[Case], Result]:
    def run(case: Case) -> Result:
        require(not case.params["softcap"], "F.scaled_dot_product_attention has no softcap")
        k, v = repeated(case)
        with sdpa_kernel(backend):
            out = functional.scaled_dot_product_attention(
                case["q"], k, v, attn_mask=allowed(case), scale=case.params["scale"]
            )
        return out.transpose(1, 2)

    return run


def glu_activation(case: Case) -> Result:
    return ACTIVATIONS[case.params["function"]](case["gate"]) * case["up"]


def activation(case: Case) -> Result:
    return ACTIVATIONS[case.params["function"]](case["x"])


def softcap(case: Case) -> Result:
    """As a caller writes it who multiplies by the inverse."""
    cap = case.params["cap"]
    return torch.tanh(case["x"] * (1 / cap)) * cap


def linear(case: Case) -> Result:
    return functional.linear(case["x"], case["weight"], case.get("bias"))


def kernels() -> list[Kernel]:
    def kernel(block: str, name: str, run: Callable[[Case], Result]) -> Kernel:
        return Kernel("torch", block, name, run)

    return [
        kernel("rms_norm", "F.rms_norm", rms_norm),
        kernel("sdpa", "F.sdpa flash", sdpa(SDPBackend.FLASH_ATTENTION)),
        kernel("sdpa", "F.sdpa math", sdpa(SDPBackend.MATH)),
        kernel("glu_activation", "F", glu_activation),
        kernel("activation", "F", activation),
        kernel("softcap", "times 1 / cap", softcap),
        kernel("linear", "F.linear", linear),
    ]
