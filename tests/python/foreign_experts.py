"""Routers, experts and samplers as other projects port them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from foreign_kernel import BASE, TOKENS, Case, numbers, seeded
from transformers import DeepseekV3Config, GptOssConfig, MixtralConfig, Qwen2MoeConfig
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.mixtral import modeling_mixtral as mixtral
from transformers.models.qwen2_moe import modeling_qwen2_moe as qwen2_moe


def not_normalised(dtype: torch.dtype) -> Case:
    config = MixtralConfig(**BASE, num_local_experts=6, num_experts_per_tok=2)
    module = seeded(mixtral.MixtralTopKRouter(config), dtype)

    def kernel(x: torch.Tensor, wrong: bool = False) -> Any:
        logits = x.reshape(-1, 48) @ module.weight.T
        values, at = logits.float().softmax(-1).topk(2)
        return logits, values if wrong else values / values.sum(-1, keepdim=True), at

    return Case(
        "mixtral: weights of experts not normalised",
        "MoE",
        module.forward,
        (numbers(2, TOKENS, 48, dtype=dtype),),
        kernel,
        [module],
    )


def top_k_first(dtype: torch.dtype) -> Case:
    config = Qwen2MoeConfig(**BASE, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False)
    module = seeded(qwen2_moe.Qwen2MoeTopKRouter(config), dtype)

    def kernel(x: torch.Tensor, wrong: bool = False) -> Any:
        logits = x.reshape(-1, 48) @ module.weight.T
        if wrong:
            values, at = logits.float().topk(2)
            values = values.softmax(-1)
        else:
            values, at = logits.float().softmax(-1).topk(2)
        return logits, values.to(dtype), at

    return Case(
        "qwen2_moe: softmax over the chosen experts",
        "MoE",
        module.forward,
        (numbers(2, TOKENS, 48, dtype=dtype),),
        kernel,
        [module],
    )


def grouped_router(dtype: torch.dtype, name: str, fault: str) -> Case:
    config = DeepseekV3Config(
        **BASE, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
        moe_intermediate_size=32, routed_scaling_factor=2.5,
    )  # fmt: skip
    module = seeded(deepseek.DeepseekV3TopkRouter(config), dtype)

    def kernel(x: torch.Tensor, wrong: bool = False) -> Any:
        logits = x.reshape(-1, 48).float() @ module.weight.float().T
        scores = logits.sigmoid()
        choice = scores + module.e_score_correction_bias
        groups = choice.view(-1, 4, 2).sum(-1).topk(2).indices
        allowed = torch.zeros(len(x.view(-1, 48)), 4, dtype=torch.bool).scatter(1, groups, True)
        masked = choice.masked_fill(~allowed.repeat_interleave(2, 1), float("-inf"))
        if wrong and fault == "no groups":
            masked = choice
        at = masked.topk(3, sorted=False).indices
        weights = (choice if wrong and fault == "bias" else scores).gather(1, at)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return logits, weights * (1.0 if wrong and fault == "scaling" else 2.5), at

    return Case(
        name, "MoE", module.forward, (numbers(2, TOKENS, 48, dtype=dtype),), kernel, [module]
    )


def bias_in_weights(dtype: torch.dtype) -> Case:
    return grouped_router(dtype, "deepseek_v3: bias of the choice in the weights", "bias")


def no_scaling(dtype: torch.dtype) -> Case:
    return grouped_router(dtype, "deepseek_v3: no routed scaling", "scaling")


def no_groups(dtype: torch.dtype) -> Case:
    return grouped_router(dtype, "deepseek_v3: groups of experts ignored", "no groups")


def clamped_experts(dtype: torch.dtype, name: str, fault: str) -> Case:
    config = GptOssConfig(**BASE, num_local_experts=4, num_experts_per_tok=2)
    module = seeded(gpt_oss.GptOssExperts(config), dtype)

    def reference(x: Any, at: Any, weights: Any) -> torch.Tensor:
        return module(x, at, weights)

    def kernel(x: Any, at: Any, weights: Any, wrong: bool = False) -> torch.Tensor:
        out = torch.zeros_like(x)
        for expert in range(4):
            token, place = (at == expert).nonzero(as_tuple=True)
            y = x[token] @ module.gate_up_proj[expert] + module.gate_up_proj_bias[expert]
            gate, up = y[:, ::2], y[:, 1::2]
            if wrong and fault == "order":
                gate, up = y.chunk(2, -1)
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
            alpha = 1.0 if wrong and fault == "alpha" else 1.702
            y = (up + 1) * (gate * torch.sigmoid(gate * alpha))
            y = y @ module.down_proj[expert] + module.down_proj_bias[expert]
            out.index_add_(0, token, (y * weights[token, place, None]).to(dtype))
        return out

    x = numbers(2 * TOKENS, 48, dtype=dtype)
    scores = numbers(2 * TOKENS, 4, seed=3).softmax(-1)
    weights, at = scores.topk(2)
    return Case(name, "MoE", reference, (x, at, weights.to(dtype)), kernel, [module])


def no_alpha(dtype: torch.dtype) -> Case:
    return clamped_experts(dtype, "gpt_oss: silu for the steeper sigmoid", "alpha")


def chunked_gate_up(dtype: torch.dtype) -> Case:
    return clamped_experts(dtype, "gpt_oss: gate and up in halves, not interleaved", "order")


def nucleus(dtype: torch.dtype) -> Case:
    warper = TopPLogitsWarper(0.8)

    def reference(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return warper(ids, logits)

    def kernel(ids: torch.Tensor, logits: torch.Tensor, wrong: bool = False) -> torch.Tensor:
        order = logits.argsort(-1, descending=True)
        sums = logits.gather(1, order).softmax(-1).cumsum(-1)
        dropped = sums > 0.8  # the token that crosses the border stays
        if not wrong:
            dropped = torch.cat([torch.zeros_like(dropped[:, :1]), dropped[:, :-1]], 1)
        return logits.masked_fill(dropped.gather(1, order.argsort(-1)), float("-inf"))

    args = (torch.zeros(3, 4, dtype=torch.int64), (3 * numbers(3, 96)).to(dtype))
    return Case(
        "top-p: the token that crosses the border dropped", "sampling", reference, args, kernel
    )


def penalty(dtype: torch.dtype) -> Case:
    processor = RepetitionPenaltyLogitsProcessor(1.3)

    def reference(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return processor(ids, logits)

    def kernel(ids: torch.Tensor, logits: torch.Tensor, wrong: bool = False) -> torch.Tensor:
        seen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
        less = torch.where((logits < 0) & (not wrong), logits * 1.3, logits / 1.3)
        return torch.where(seen, less, logits)

    args = (torch.arange(24).view(3, 8), (3 * numbers(3, 96)).to(dtype))
    return Case("repetition penalty: negative logits divided", "sampling", reference, args, kernel)


def temperature(dtype: torch.dtype) -> Case:
    warper = TemperatureLogitsWarper(0.7)

    def reference(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return warper(ids, logits).float().softmax(-1)

    def kernel(ids: torch.Tensor, logits: torch.Tensor, wrong: bool = False) -> torch.Tensor:
        scaled = logits * 0.7 if wrong else logits / 0.7
        return scaled.float().softmax(-1)

    args = (torch.zeros(3, 4, dtype=torch.int64), (3 * numbers(3, 96)).to(dtype))
    return Case("temperature multiplied", "sampling", reference, args, kernel)


CASES: list[Callable[[torch.dtype], Case]] = [
    not_normalised,
    top_k_first,
    bias_in_weights,
    no_scaling,
    no_groups,
    no_alpha,
    chunked_gate_up,
    nucleus,
    penalty,
    temperature,
]
