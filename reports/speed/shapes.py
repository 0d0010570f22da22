"""The published sizes of the models that benchmarks use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..beside import SIZES


@dataclass(frozen=True)
class Shape:
    """Sizes of one decoder layer and its embedding, batch 1."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gemma: bool = False  # sandwich norms, 1 + weight, tanh-gelu, scaled embedding
    attention_softcap: float | None = None
    final_softcap: float | None = None
    window: int | None = None  # of the layers that slide


def _shape(name: str, config: dict[str, Any]) -> Shape:
    return Shape(
        name,
        config["hidden_size"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
        config["intermediate_size"],
        config["vocab_size"],
        config["model_type"] == "gemma2",
        config.get("attn_logit_softcapping"),
        config.get("final_logit_softcapping"),
        config.get("sliding_window"),
    )


# Mamba2 has no rivals here.
SHAPES = {
    name: _shape(name, config) for name, config in SIZES.items() if config["model_type"] != "zamba2"
}


@dataclass(frozen=True)
class Sizes:
    """What one measurement is about: new tokens per call, keys in all, dtype and device by name."""

    tokens: int
    context: int
    dtype: str
    device: str
