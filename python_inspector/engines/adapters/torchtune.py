"""torchtune: its builders and its own conversion of HuggingFace's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torchao  # noqa: F401  torchtune needs it, and says so badly
from torchtune.models.convert_weights import hf_to_tune
from torchtune.models.gemma2._component_builders import gemma2
from torchtune.models.gemma2._convert_weights import gemma2_hf_to_tune
from torchtune.models.llama3._component_builders import llama3
from torchtune.models.mistral._component_builders import mistral
from torchtune.models.qwen2._component_builders import qwen2
from torchtune.models.qwen2._convert_weights import qwen2_hf_to_tune

from ..capture import capture
from ..steps import Step
from ..weights import config_of, weights_of
from .engine import LAYERS, Engine, head_dim, require, rope_theta

MODULES = dict(zip(("tok_embeddings", "layers.{}", "norm"), LAYERS, strict=True))
BUILDERS: dict[str, Any] = {
    "llama": llama3, "mistral": mistral, "qwen2": qwen2, "gemma2": gemma2
}  # fmt: skip
CONVERTERS: dict[str, Any] = {"gemma2": gemma2_hf_to_tune, "qwen2": qwen2_hf_to_tune}


def build(hf: dict[str, Any]) -> Any:
    kind = hf["model_type"]
    require(kind in BUILDERS, f"no builder for {kind}")
    sizes: dict[str, Any] = {
        "vocab_size": hf["vocab_size"], "num_layers": hf["num_hidden_layers"],
        "num_heads": hf["num_attention_heads"], "num_kv_heads": hf["num_key_value_heads"],
        "embed_dim": hf["hidden_size"], "intermediate_dim": hf["intermediate_size"],
        "max_seq_len": hf["max_position_embeddings"], "norm_eps": hf["rms_norm_eps"],
        "rope_base": rope_theta(hf),
    }  # fmt: skip
    if kind == "gemma2":
        sizes |= {
            "head_dim": head_dim(hf), "query_pre_attn_scalar": hf["query_pre_attn_scalar"],
            "hidden_capping_value": hf["attn_logit_softcapping"],
            "final_capping_value": hf["final_logit_softcapping"],
            "sliding_window_size": hf["sliding_window"],
        }  # fmt: skip
    else:
        wide = head_dim(hf) * hf["num_attention_heads"]
        require(wide == hf["hidden_size"], f"heads of {head_dim(hf)} that do not fill the channels")
    if kind == "qwen2":
        sizes["tie_word_embeddings"] = hf["tie_word_embeddings"]
    return BUILDERS[kind](**sizes)


def converted(hf: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    convert = CONVERTERS.get(hf["model_type"], hf_to_tune)
    heads = hf["num_attention_heads"], hf["num_key_value_heads"]
    state: dict[str, Any] = convert(weights, *heads, hf["hidden_size"], head_dim(hf))
    if hf["tie_word_embeddings"]:
        state.pop("output.weight", None)
    return state


def model(recording: Path | str) -> Any:
    """The decoder in the recorded dtype, rotary tables in float32."""
    hf = config_of(recording)
    weights = weights_of(recording)
    built = build(hf)
    for parameter in built.parameters():
        parameter.data = parameter.data.to(weights["model.norm.weight"].dtype)
    built.load_state_dict(converted(hf, weights))
    return built.eval()


def engine(recording: Path | str, built: Any = None) -> Engine:
    """`built`: instead of `model(recording)`, one that was changed."""
    built = built or model(recording)
    dtype = next(built.parameters()).dtype

    def run(ids: Any, **arguments: Any) -> dict[str, Any]:
        with torch.no_grad(), capture(built, MODULES) as layers:
            return {"logits": built(ids, **arguments), **layers}

    def prefill(ids: Any) -> Any:
        for module in built.modules():
            if hasattr(module, "cache_enabled"):
                module.cache_enabled = False
        return run(ids)

    def cached(ids: Any, step: Step) -> Any:
        if step.first:
            require(not any(step.padding), "padding")
            for layer in built.layers:
                layer.attn.kv_cache, layer.attn.cache_enabled = None, False
            built.setup_caches(ids.shape[0], dtype, decoder_max_seq_len=step.total)
        positions = torch.arange(step.position, step.position + step.tokens)
        mask = torch.tril(torch.ones(step.total, step.total, dtype=torch.bool))[None, positions]
        expanded = mask.expand(ids.shape[0], -1, -1)
        return run(ids, input_pos=positions[None].expand(ids.shape[0], -1), mask=expanded)

    return Engine("torchtune", {"prefill": prefill, "cache": cached})
