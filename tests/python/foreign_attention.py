"""Attentions as other projects port them: masks, scales, query norms, sinks, softcaps, MLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from foreign_kernel import BASE, TOKENS, Case, causal, numbers, rms, rotated, seeded, tables
from torch.nn import functional
from transformers import DeepseekV3Config, Qwen3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3


def attended(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    change: Callable[[torch.Tensor], torch.Tensor] = lambda scores: scores,
) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = change(q @ k.mT * scale) + mask
    weights = functional.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    return (weights @ v).transpose(1, 2).contiguous()


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    q = numbers(2, 6, TOKENS, 8, dtype=dtype)
    return q, *(numbers(2, 2, TOKENS, 8, seed=s, dtype=dtype) for s in (1, 2))


class Caller(torch.nn.Module):
    """What transformers' attention functions ask of the module that calls them."""

    num_key_value_groups = 3
    layer_idx = 0


def window_one_longer(dtype: torch.dtype) -> Case:
    caller = Caller().eval()

    def reference(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        return llama.eager_attention_forward(caller, q, k, v, mask, 8**-0.5)[0]

    def kernel(q: Any, k: Any, v: Any, mask: Any, wrong: bool = False) -> torch.Tensor:
        return attended(q, k, v, causal(TOKENS, dtype, 6 if wrong else 5), 8**-0.5)

    args = (*operands(dtype), causal(TOKENS, dtype, 5))
    return Case("mistral: a window one longer", "mask", reference, args, kernel)


def sees_next(dtype: torch.dtype) -> Case:
    caller = Caller().eval()

    def reference(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        return llama.eager_attention_forward(caller, q, k, v, mask, 8**-0.5)[0]

    def kernel(q: Any, k: Any, v: Any, mask: Any, wrong: bool = False) -> torch.Tensor:
        if wrong:
            mask = torch.cat([mask[:, :, 1:], mask[:, :, -1:]], 2)
        return attended(q, k, v, mask, 8**-0.5)

    args = (*operands(dtype), causal(TOKENS, dtype))
    return Case("llama: the next token is seen", "mask", reference, args, kernel)


def padding_seen(dtype: torch.dtype) -> Case:
    caller = Caller().eval()
    mask = causal(TOKENS, dtype).repeat(2, 1, 1, 1)
    mask[1, :, 3:, :3] = torch.finfo(dtype).min

    def reference(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        return llama.eager_attention_forward(caller, q, k, v, mask, 8**-0.5)[0]

    def kernel(q: Any, k: Any, v: Any, mask: Any, wrong: bool = False) -> torch.Tensor:
        return attended(q, k, v, causal(TOKENS, dtype) if wrong else mask, 8**-0.5)

    return Case("llama: padding is seen", "mask", reference, (*operands(dtype), mask), kernel)


def no_softcap(dtype: torch.dtype) -> Case:
    caller = Caller().eval()

    def reference(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        return gemma2.eager_attention_forward(caller, q, k, v, mask, 0.0, 1.0, softcap=20.0)[0]

    def kernel(q: Any, k: Any, v: Any, mask: Any, wrong: bool = False) -> torch.Tensor:
        def capped(scores: torch.Tensor) -> torch.Tensor:
            return scores if wrong else torch.tanh(scores / 20.0) * 20.0

        return attended(q, k, v, mask, 1.0, capped)

    args = (*operands(dtype), causal(TOKENS, dtype))
    return Case("gemma2: no softcap on scores", "softcap", reference, args, kernel)


def no_sinks(dtype: torch.dtype) -> Case:
    caller = Caller().eval()
    caller.sinks = torch.nn.Parameter(numbers(6, seed=5, dtype=dtype), requires_grad=False)

    def reference(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        return gpt_oss.eager_attention_forward(caller, q, k, v, mask, 8**-0.5)[0]

    def kernel(q: Any, k: Any, v: Any, mask: Any, wrong: bool = False) -> torch.Tensor:
        k, v = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
        scores = q @ k.mT * 8**-0.5 + mask
        if wrong:
            return (scores.softmax(-1) @ v).transpose(1, 2).contiguous()
        sinks = caller.sinks.view(1, 6, 1, 1).expand(2, 6, TOKENS, 1)
        scores = torch.cat([scores, sinks], -1)
        scores = scores - scores.amax(-1, keepdim=True)
        return (scores.softmax(-1)[..., :-1] @ v).transpose(1, 2).contiguous()

    args = (*operands(dtype), causal(TOKENS, dtype))
    return Case("gpt_oss: sinks dropped", "sinks", reference, args, kernel, [caller])


def query_norms(dtype: torch.dtype, name: str, fault: str) -> Case:
    config = Qwen3Config(**BASE)
    config._attn_implementation = "eager"
    module = seeded(qwen3.Qwen3Attention(config, 0), dtype)

    def reference(x: Any, cos: Any, sin: Any, mask: Any) -> torch.Tensor:
        return module(x, (cos, sin), mask)[0]

    def kernel(x: Any, cos: Any, sin: Any, mask: Any, wrong: bool = False) -> torch.Tensor:
        def heads(linear: Any, norm: Any = None) -> torch.Tensor:
            y = linear(x).view(2, TOKENS, -1, 8)
            if norm is not None and not (wrong and fault == "no norm"):
                joined = y.flatten(2)[:, :, None] if wrong and fault == "all heads" else y
                y = norm.weight * rms(joined.float(), config.rms_norm_eps).view(y.shape).to(dtype)
            return y.transpose(1, 2)

        q, k = heads(module.q_proj, module.q_norm), heads(module.k_proj, module.k_norm)
        q, k = rotated(q, cos[:, None], sin[:, None]), rotated(k, cos[:, None], sin[:, None])
        out = attended(q, k, heads(module.v_proj), mask, 8**-0.5)
        return module.o_proj(out.view(2, TOKENS, -1))

    args = (numbers(2, TOKENS, 48, dtype=dtype), *tables(8, dtype), causal(TOKENS, dtype))
    return Case(name, "norm", reference, args, kernel, [module])


def no_query_norm(dtype: torch.dtype) -> Case:
    return query_norms(dtype, "qwen3: no norm of queries and keys", "no norm")


def norm_over_heads(dtype: torch.dtype) -> Case:
    return query_norms(dtype, "qwen3: one norm over all heads", "all heads")


def latent(dtype: torch.dtype, name: str, fault: str) -> Case:
    config = DeepseekV3Config(
        **BASE | {"num_key_value_heads": 6}, kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8,
    )  # fmt: skip
    config._attn_implementation = "eager"
    module = seeded(deepseek.DeepseekV3Attention(config, 0), dtype)

    def reference(x: Any, cos: Any, sin: Any, mask: Any) -> torch.Tensor:
        return module(x, (cos, sin), mask)[0]

    def kernel(x: Any, cos: Any, sin: Any, mask: Any, wrong: bool = False) -> torch.Tensor:
        def normed(norm: Any, y: torch.Tensor) -> torch.Tensor:
            return norm.weight * rms(y.float(), norm.variance_epsilon).to(dtype)

        def turned(y: torch.Tensor) -> torch.Tensor:
            y = torch.cat([y[..., ::2], y[..., 1::2]], -1)
            return rotated(y, cos[:, None], sin[:, None])

        q = module.q_b_proj(normed(module.q_a_layernorm, module.q_a_proj(x)))
        q = q.view(2, TOKENS, 6, 16).transpose(1, 2)
        joined = module.kv_a_proj_with_mqa(x)
        kept = joined[..., :16]
        if not (wrong and fault == "no latent norm"):
            kept = normed(module.kv_a_layernorm, kept)
        made = module.kv_b_proj(kept).view(2, TOKENS, 6, 16).transpose(1, 2)
        shared = turned(joined[:, None, :, 16:]).expand(2, 6, TOKENS, 8)
        q = torch.cat([q[..., :8], turned(q[..., 8:])], -1)
        k = torch.cat([made[..., :8], shared], -1)
        scale = (8 if wrong and fault == "scale" else 16) ** -0.5
        out = attended(q, k, made[..., 8:], mask, scale)
        return module.o_proj(out.view(2, TOKENS, -1))

    args = (numbers(2, TOKENS, 48, dtype=dtype), *tables(8, dtype), causal(TOKENS, dtype))
    return Case(name, "MLA", reference, args, kernel, [module])


def latent_scale(dtype: torch.dtype) -> Case:
    return latent(dtype, "deepseek_v3: scale without the rotary part", "scale")


def no_latent_norm(dtype: torch.dtype) -> Case:
    return latent(dtype, "deepseek_v3: latent not normed", "no latent norm")


CASES: list[Callable[[torch.dtype], Case]] = [
    window_one_longer,
    sees_next,
    padding_seen,
    no_softcap,
    no_sinks,
    no_query_norm,
    norm_over_heads,
    latent_scale,
    no_latent_norm,
]
