"""The recordings that kernels are judged on: committed ones, and longer ones made afresh.

The fresh ones have a few hundred tokens, sizes that are no multiple of a tile, and a seed: whoever
tunes the judge tunes it on others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import python_inspector
from python_inspector import tiny
from python_inspector.taps.options import What

ROOT = Path(__file__).parents[2]
SEED = 20261
TOKENS, STEPS = 301, 2

COMMITTED = {
    "f32": (
        "llama-a1/whole-f32", "gemma2-a4/whole-f32", "border-llama3-8b/whole-f32-sdpa",
        "border-gemma2-2b/whole-f32", "border-odd/whole-f32", "border-odd/decode-f32-d80",
        "border-small/whole-f32-llama", "border-small/whole-f32-gemma2", "llama-a2-mqa/whole-f32",
    ),
    "f16": (
        "llama-a1/whole-f16", "gemma2-a4/whole-f16", "border-llama32-1b/whole-f16-sdpa",
        "border-odd/whole-f16",
    ),
    "bf16": (
        "llama-a1/decode-bf16", "gemma2-a4/decode-bf16", "border-llama3-8b/whole-bf16",
        "border-gemma2-2b/whole-bf16", "border-odd/whole-bf16", "border-odd/decode-bf16-d96",
        "border-small/whole-bf16-llama", "border-small/whole-bf16-gemma2",
    ),
}  # fmt: skip

_COMMON: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 330,
    "intermediate_size": 436,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
FRESH: dict[str, dict[str, Any]] = {
    "llama": _COMMON | {"num_hidden_layers": 1, "head_dim": 64, "rms_norm_eps": 1e-5},
    "gemma2": _COMMON
    | {
        "num_hidden_layers": 2,
        "head_dim": 48,
        "query_pre_attn_scalar": 48,
        "sliding_window": 70,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def folders(dtype: str, fresh: Path, seed: int = SEED) -> list[Path]:
    """All recordings of a dtype; the fresh ones are made in `fresh` where they are not there."""
    committed = [ROOT / "fixtures" / name for name in COMMITTED[dtype]]
    return [*committed, *(_recorded(model, dtype, fresh, seed) for model in FRESH)]


def _recorded(model_type: str, dtype: str, fresh: Path, seed: int) -> Path:
    out = fresh / f"{model_type}-long-s{seed}" / f"decode-{dtype}"
    if (out / "recording.json").is_file():
        return out
    model = _model(model_type, DTYPES[dtype], seed)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(FRESH[model_type]["vocab_size"], (1, TOKENS + STEPS), generator=generator)
    with torch.no_grad(), python_inspector.record(model, out, What(internals=False)):
        cache = model(ids[:, :TOKENS], use_cache=True).past_key_values
        for step in range(TOKENS, TOKENS + STEPS):
            cache = model(ids[:, step : step + 1], past_key_values=cache).past_key_values
    return out


def _model(model_type: str, dtype: torch.dtype, seed: int) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **FRESH[model_type])
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    zero_centred = model_type == "gemma2"
    tiny.load_weights(model, tiny.draw_weights(model, seed, zero_centred_norms=zero_centred))
    return model.eval()
