"""LitGPT: its GPT and its own conversion of HuggingFace's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from litgpt import Config
from litgpt.model import GPT
from litgpt.scripts import convert_hf_checkpoint as converters

from ..capture import capture
from ..steps import Step
from ..weights import config_of, weights_of
from .engine import (
    LAYERS,
    Engine,
    head_dim,
    in_pieces,
    require,
    rope_theta,
    windows,
)

# The model, not a module, multiplies embedding and scale: the product is the input of layer 0.
MODULES = dict(
    zip(("transformer.h.0:input", "transformer.h.{}", "transformer.ln_f"), LAYERS, strict=True)
)


def settings(hf: dict[str, Any]) -> Config:
    """LitGPT's configuration of a model, as its list has the published ones of that family."""
    kind = hf["model_type"]
    require(kind in ("llama", "mistral", "qwen2", "gemma2"), f"no configuration for {kind}")
    window = windows(hf)
    family: dict[str, Any] = {}
    if kind == "gemma2":
        family = {
            "mlp_class_name": "GemmaMLP", "gelu_approximate": "tanh", "scale_embeddings": True,
            "post_attention_norm": True, "post_mlp_norm": True,
            "attention_scores_scalar": hf["query_pre_attn_scalar"],
            "attention_logit_softcapping": hf["attn_logit_softcapping"],
            "final_logit_softcapping": hf["final_logit_softcapping"],
        }  # fmt: skip
    return Config(
        name="Gemma-2" if kind == "gemma2" else kind,  # by which it adds 1 to norm weights
        block_size=hf["max_position_embeddings"],
        vocab_size=hf["vocab_size"], padded_vocab_size=hf["vocab_size"],
        n_layer=hf["num_hidden_layers"], n_head=hf["num_attention_heads"],
        n_query_groups=hf["num_key_value_heads"], n_embd=hf["hidden_size"],
        head_size=head_dim(hf), intermediate_size=hf["intermediate_size"], rotary_percentage=1.0,
        rope_base=rope_theta(hf), norm_class_name="RMSNorm", norm_eps=hf["rms_norm_eps"],
        parallel_residual=False, bias=False, attn_bias=kind == "qwen2",
        sliding_window_size=next(filter(None, window), None),
        sliding_window_indices=[int(size is not None) for size in window] if any(window) else None,
        **{"mlp_class_name": "LLaMAMLP"} | family,
    )  # fmt: skip


def converted(config: Config, kind: str, weights: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if kind == "gemma2":
        converters.copy_weights_gemma_2({}, state, weights)
    elif kind == "qwen2":
        converters.copy_weights_qwen_2_5(config, {}, state, weights)
    else:
        converters.copy_weights_hf_llama(config, {}, state, weights)
    return state


def model(recording: Path | str) -> tuple[GPT, torch.dtype]:
    hf = config_of(recording)
    config = settings(hf)
    weights = weights_of(recording)
    built = GPT(config)
    dtype = weights["model.norm.weight"].dtype
    built.to(dtype).load_state_dict(converted(config, hf["model_type"], weights))
    built.cos, built.sin = built.rope_cache()  # .to() would have rounded them
    return built.eval(), dtype


def engine(recording: Path | str, piece: int = 0) -> Engine:
    """`piece`: tokens given to a model with a window at a time; 0: as many as it takes."""
    gpt, dtype = model(recording)
    window = gpt.config.sliding_window_size

    def run(ids: Any, *arguments: Any) -> dict[str, Any]:
        with torch.no_grad(), capture(gpt, MODULES) as layers:
            return {"logits": gpt(ids, *arguments), **layers}

    def prefill(ids: Any) -> Any:
        gpt.clear_kv_cache()
        return run(ids)

    def cached(ids: Any, step: Step) -> Any:
        if step.first:
            require(not any(step.padding), "padding")
            gpt.clear_kv_cache()
            gpt.set_kv_cache(ids.shape[0], step.total, dtype=dtype)

        def some(begin: int, end: int) -> dict[str, Any]:
            return run(ids[:, begin:end], torch.arange(begin, end) + step.position)

        return in_pieces(some, step, piece or window or step.tokens)

    notes = ("a prompt longer than the window in pieces of its size, as LitGPT asks for",)
    return Engine("litgpt", {"prefill": prefill, "cache": cached}, notes=notes)
