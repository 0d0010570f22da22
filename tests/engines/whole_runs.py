"""The runs that whole models of engines are judged on: small, of sizes that nothing was tuned on.

Every engine can load them: heads fill the channels, numbers are those of the published families.
Where a window is narrower than the prompt it is seen, where it is wider it must not be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import python_inspector
from python_inspector import tiny
from python_inspector.taps.options import Proof, What

from .recordings import DTYPES, ROOT

SEED, BATCH, TOKENS, STEPS = 20262, 2, 37, 3
FRESH = ROOT / "build" / "engines" / "whole"

_SIZES: dict[str, Any] = {
    "vocab_size": 157, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}  # fmt: skip
_GEMMA2 = _SIZES | {
    "num_hidden_layers": 4, "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 16,
    "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
}  # fmt: skip
_TILES = {
    "hidden_size": 576, "intermediate_size": 1184, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 1031, "num_hidden_layers": 2,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _SIZES | {"rms_norm_eps": 1e-5, "rope_theta": 500000.0}),
    "mistral": ("mistral", _SIZES | {"sliding_window": 16, "rms_norm_eps": 1e-5, "head_dim": 16}),
    "mistral-wide": (
        "mistral",
        _SIZES | {"sliding_window": 64, "rms_norm_eps": 1e-5, "head_dim": 16},
    ),
    "qwen2": ("qwen2", _SIZES | {"rms_norm_eps": 1e-6, "rope_theta": 1000000.0}),
    "gemma2": ("gemma2", _GEMMA2),
    "gemma2-wide": ("gemma2", _GEMMA2 | {"sliding_window": 64}),
    # As wide as the tiles of fast kernels, and not a multiple of them.
    "llama-tiles": ("llama", _SIZES | _TILES | {"rms_norm_eps": 1e-5, "rope_theta": 500000.0}),
    "gemma2-tiles": (
        "gemma2",
        _GEMMA2 | _TILES | {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 64},
    ),
    # The scale of the 27B model is that of its channels, 1 / sqrt(hidden / heads).
    "gemma2-27b": ("gemma2", _GEMMA2 | {"sliding_window": 64, "query_pre_attn_scalar": 16}),
}
RUNS = [(name, dtype) for dtype in ("f32", "bf16") for name in MODELS] + [("llama", "f16")]


def folder(name: str, dtype: str) -> Path:
    """The recording, made where it is not there."""
    out = FRESH / name / f"decode-{dtype}"
    if not (out / "recording.json").is_file():
        _record(name, DTYPES[dtype], out)
    return out


def _record(name: str, dtype: torch.dtype, out: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    kind, numbers = MODELS[name]
    numbers = dict(numbers)
    theta = numbers.pop("rope_theta", 10000.0)
    config = AutoConfig.for_model(
        kind, rope_parameters={"rope_type": "default", "rope_theta": theta}, **numbers
    )
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    tiny.load_weights(model, tiny.draw_weights(model, SEED, zero_centred_norms=kind == "gemma2"))
    generator = torch.Generator().manual_seed(SEED)
    ids = torch.randint(3, config.vocab_size, (BATCH, TOKENS + STEPS), generator=generator)
    cache = DynamicCache(config=config)
    recorder = python_inspector.record(model.eval(), out, What(blocks=()), Proof(chained=True))
    with torch.no_grad(), recorder:
        model(ids[:, :TOKENS], past_key_values=cache, use_cache=True)
        for step in range(TOKENS, TOKENS + STEPS):
            model(ids[:, step : step + 1], past_key_values=cache, use_cache=True)
