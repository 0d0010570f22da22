"""Rotary embeddings and norms as other projects port them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from foreign_kernel import BASE, TOKENS, Case, angles, half, numbers, rms, rotated, seeded, tables
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.llama import modeling_llama as llama


def rotate_pairs(dtype: torch.dtype) -> Case:
    def kernel(
        q: Any, k: Any, cos: Any, sin: Any, wrong: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = cos[:, None], sin[:, None]
        if not wrong:
            return rotated(q, cos, sin), rotated(k, cos, sin)

        def pairs(x: torch.Tensor) -> torch.Tensor:
            a, b, c, s = x[..., ::2], x[..., 1::2], half(cos), half(sin)
            return torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)

        return pairs(q), pairs(k)

    q, k = numbers(2, 6, TOKENS, 8, dtype=dtype), numbers(2, 2, TOKENS, 8, seed=1, dtype=dtype)
    args = (q, k, *tables(8, dtype))
    return Case(
        "llama: neighbours rotated, not halves", "rotary", llama.apply_rotary_pos_emb, args, kernel
    )


def rotate_last(dtype: torch.dtype) -> Case:
    def kernel(q: Any, k: Any, cos: Any, sin: Any, wrong: bool = False) -> Any:
        cos, sin = cos[:, None], sin[:, None]

        def partly(x: torch.Tensor) -> torch.Tensor:
            if wrong:
                return torch.cat([x[..., :-4], rotated(x[..., -4:], cos, sin)], -1)
            return torch.cat([rotated(x[..., :4], cos, sin), x[..., 4:]], -1)

        return partly(q), partly(k)

    q, k = numbers(2, 6, TOKENS, 8, dtype=dtype), numbers(2, 6, TOKENS, 8, seed=1, dtype=dtype)
    args = (q, k, *tables(4, dtype))
    return Case(
        "gpt_neox: the last part rotated", "rotary", neox.apply_rotary_pos_emb, args, kernel
    )


def not_interleaved(dtype: torch.dtype) -> Case:
    def kernel(q: Any, k: Any, cos: Any, sin: Any, wrong: bool = False) -> Any:
        def turned(x: torch.Tensor) -> torch.Tensor:
            if not wrong:
                x = torch.cat([x[..., ::2], x[..., 1::2]], -1)
            return rotated(x, cos[:, None], sin[:, None])

        return turned(q), turned(k)

    q, k = numbers(2, 6, TOKENS, 8, dtype=dtype), numbers(2, 1, TOKENS, 8, seed=1, dtype=dtype)
    args = (q, k, *tables(8, dtype))
    function = deepseek.apply_rotary_pos_emb_interleave
    return Case("deepseek_v3: rope not interleaved", "rotary", function, args, kernel)


def global_theta(dtype: torch.dtype) -> Case:
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**BASE, layer_types=kinds, max_position_embeddings=64)
    module = gemma3.Gemma3RotaryEmbedding(config)
    thetas = {kind: config.rope_parameters[kind]["rope_theta"] for kind in kinds}

    def reference(x: torch.Tensor, positions: torch.Tensor) -> Any:
        return module(x, positions, "sliding_attention")

    def kernel(x: torch.Tensor, positions: torch.Tensor, wrong: bool = False) -> Any:
        theta = thetas["full_attention" if wrong else "sliding_attention"]
        both = torch.cat([angles(8, theta)] * 2, -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    args = (numbers(1, TOKENS, 48, dtype=dtype), torch.arange(TOKENS)[None])
    return Case(
        "gemma3: global theta in a local layer", "rotary", reference, args, kernel, [module]
    )


def from_one(dtype: torch.dtype) -> Case:
    module = llama.LlamaRotaryEmbedding(LlamaConfig(**BASE))

    def kernel(x: torch.Tensor, positions: torch.Tensor, wrong: bool = False) -> Any:
        both = torch.cat([angles(8, 1e4, first=int(wrong))] * 2, -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    args = (numbers(1, TOKENS, 48, dtype=dtype), torch.arange(TOKENS)[None])
    return Case("llama: positions from 1", "rotary", module.forward, args, kernel, [module])


def without_one(dtype: torch.dtype) -> Case:
    module = seeded(gemma2.Gemma2RMSNorm(48, eps=1e-6), dtype)

    def kernel(x: torch.Tensor, wrong: bool = False) -> torch.Tensor:
        weight = module.weight.float() + (0.0 if wrong else 1.0)
        return (rms(x.float(), 1e-6) * weight).to(dtype)

    return Case(
        "gemma2: weight for 1 + weight",
        "norm",
        module.forward,
        (numbers(2, TOKENS, 48, dtype=dtype),),
        kernel,
        [module],
    )


def other_eps(dtype: torch.dtype) -> Case:
    module = seeded(llama.LlamaRMSNorm(48, eps=1e-5), dtype)

    def kernel(x: torch.Tensor, wrong: bool = False) -> torch.Tensor:
        return module.weight * rms(x.float(), 1e-6 if wrong else 1e-5).to(dtype)

    x = (0.05 * numbers(2, TOKENS, 48)).to(dtype)
    return Case("llama: eps 1e-6 for 1e-5", "norm", module.forward, (x,), kernel, [module])


def unbiased(dtype: torch.dtype) -> Case:
    module = seeded(torch.nn.LayerNorm(48), dtype)

    def kernel(x: torch.Tensor, wrong: bool = False) -> torch.Tensor:
        x = x.float()
        variance = x.var(-1, keepdim=True, unbiased=wrong)
        scaled = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance + 1e-5)
        return (scaled * module.weight.float() + module.bias.float()).to(dtype)

    return Case(
        "layer norm: variance over n - 1",
        "norm",
        module.forward,
        (numbers(2, TOKENS, 48, dtype=dtype),),
        kernel,
        [module],
    )


CASES: list[Callable[[torch.dtype], Case]] = [
    rotate_pairs,
    rotate_last,
    not_interleaved,
    global_theta,
    from_one,
    without_one,
    other_eps,
    unbiased,
]
