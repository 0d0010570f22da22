"""Tiny seeded models that reach every branch of the code of the large ones.

Transformers' own initialisation hides errors: norm weights are one, biases zero, scores near zero
and softcaps in their linear range. Here every parameter is random: matrices N(0, (1.4 /
sqrt(fan_in))^2), embeddings N(0, 1), norm weights 1 + 0.3 N (0.3 N where the model adds the one
itself), biases 0.3 N. A gain of 1.4 puts a third of Gemma2's attention scores beyond half the
softcap of 3. Of Mamba2 mixers A is -U(1, 4), dt_bias -2 + N, D 1 + 0.3 N.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..compatibility import check_model_type
from ..described import DECODERS
from ..errors import UnknownModelError
from .any_tiny import build_any, configurations

GAIN = 1.4
ZAMBA2_GAIN = 0.7
"""Shared blocks without residuals amplify rounding: a gain of 1.4 leaves float32 three digits."""
SPREAD = 0.3
DEFAULT_SEED = 1


@dataclass(frozen=True)
class TinyModel:
    """A configuration of a transformers architecture, and what is peculiar to its weights."""

    model_type: str
    config: Mapping[str, Any]
    about: str
    gain: float = GAIN
    score_gain: float = 1.0
    """What query projections, and so attention scores, are larger by."""
    outlier_channels: tuple[int, ...] = ()
    """Columns of the embedding that are 20 times larger: they stay so along the residual stream."""
    outlier_token: int | None = None
    """A token with one embedding value 600 times larger; a run holds it exactly once."""


OUTLIER_CHANNEL_GAIN = 20.0
OUTLIER_VALUE_GAIN = 600.0

_LLAMA: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
}
_MISTRAL = _LLAMA | {"num_hidden_layers": 2, "sliding_window": 4}
_QWEN2 = _LLAMA | {
    "use_sliding_window": True,
    "sliding_window": 4,
    "max_window_layers": 1,
    "tie_word_embeddings": True,
}
_PHI3 = _LLAMA | {
    "sliding_window": 4,
    "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "pad_token_id": 0,
    "eos_token_id": 1,
}
_COHERE = {name: value for name, value in _LLAMA.items() if name != "rms_norm_eps"} | {
    "use_qk_norm": True,
    "logit_scale": 0.3,
    "eos_token_id": 1,
}
_GEMMA2: dict[str, Any] = {
    "vocab_size": 53,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "query_pre_attn_scalar": 20,
    "sliding_window": 5,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 2.0,
    "max_position_embeddings": 64,
}
_ZAMBA2: dict[str, Any] = {
    "vocab_size": 59,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "layers_block_type": [
        "linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid", "linear_attention",
    ],
    "num_attention_heads": 4,
    "n_mamba_heads": 4,
    "mamba_d_state": 8,
    "mamba_ngroups": 2,
    "mamba_d_conv": 4,
    "chunk_size": 8,
    "adapter_rank": 4,
    "num_mem_blocks": 2,
    "use_shared_attention_adapter": True,
    "use_mem_rope": True,
    "max_position_embeddings": 64,
}  # fmt: skip
_ZAMBA2_PLAIN = _ZAMBA2 | {
    "num_mem_blocks": 1,
    "use_shared_attention_adapter": False,
    "use_mem_rope": False,
    "mamba_ngroups": 1,
    "num_key_value_heads": 2,
}


def _biased(kv_heads: int) -> dict[str, Any]:
    return _LLAMA | {
        "head_dim": 12,
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": kv_heads,
    }


def _rope(max_position: int = 64, **parameters: Any) -> dict[str, Any]:
    return _LLAMA | {
        "head_dim": 16,
        "num_hidden_layers": 1,
        "max_position_embeddings": max_position,
        "rope_parameters": {"rope_theta": 10000.0, **parameters},
    }


def _yarn(original: int, **parameters: Any) -> dict[str, Any]:
    return _rope(
        4 * original,
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=original,
        **parameters,
    )


MODELS: dict[str, TinyModel] = {
    "llama-a1": TinyModel("llama", _LLAMA, "grouped query heads, default rotary"),
    "llama-a2-mqa": TinyModel("llama", _biased(1), "head_dim 12, all biases, one kv head"),
    "llama-a2-mha": TinyModel("llama", _biased(4), "head_dim 12, all biases, a kv head per head"),
    "llama-a3-linear": TinyModel(
        "llama", _rope(rope_type="linear", factor=4.0), "linear rotary scaling"
    ),
    "llama-a3-llama3": TinyModel(
        "llama",
        _rope(
            256,
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
        "llama3 rotary scaling, frequencies in all three bands",
    ),
    "llama-a3-yarn": TinyModel("llama", _yarn(4096), "yarn, corrections rounded to whole pairs"),
    "llama-a3-yarn-exact": TinyModel(
        "llama", _yarn(4096, truncate=False), "yarn, corrections not rounded"
    ),
    "llama-a3-yarn-long": TinyModel(
        "llama", _yarn(131072), "yarn, upper correction past the pairs"
    ),
    "llama-a3-yarn-mscale": TinyModel(
        "llama", _yarn(4096, mscale=2.0, mscale_all_dim=0.5), "yarn, attention factor from mscale"
    ),
    "llama-a3-longrope": TinyModel(
        "llama",
        _rope(
            40,
            rope_type="longrope",
            factor=4.0,
            original_max_position_embeddings=10,
            short_factor=[1.0, 1.05, 1.1, 1.2, 1.3, 1.45, 1.6, 1.8],
            long_factor=[1.0, 1.3, 1.7, 2.2, 2.8, 3.4, 3.8, 4.0],
        ),
        "longrope, short factors up to 10 tokens",
    ),
    "llama-a3-dynamic": TinyModel(
        "llama", _rope(10, rope_type="dynamic", factor=2.0), "dynamic rotary scaling past 10 tokens"
    ),
    "llama-x2": TinyModel(
        "llama",
        _LLAMA | {"num_hidden_layers": 1},
        "attention scores 60 times larger",
        score_gain=60.0,
    ),
    "mistral-b1": TinyModel("mistral", _MISTRAL, "window 4 on all layers"),
    "mistral-b1-full": TinyModel(
        "mistral", _MISTRAL | {"num_hidden_layers": 1, "sliding_window": None}, "no window"
    ),
    "qwen2-b2": TinyModel(
        "qwen2", _QWEN2, "biases on q, k and v, window 4 from layer 1 on, a tied head"
    ),
    "qwen2-b2-full": TinyModel(
        "qwen2",
        _QWEN2 | {"use_sliding_window": False, "max_window_layers": 0, "num_hidden_layers": 1},
        "a window that is switched off",
    ),
    "qwen3-b3": TinyModel(
        "qwen3", _QWEN2 | {"head_dim": 12}, "norms of queries and keys, window 4 from layer 1 on"
    ),
    "phi3-b4": TinyModel(
        "phi3", _PHI3, "packed projections, rotary on half of a head, window 4 on all layers"
    ),
    "phi3-b4-longrope": TinyModel(
        "phi3",
        _PHI3
        | {
            "sliding_window": None,
            "max_position_embeddings": 40,
            "original_max_position_embeddings": 10,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "short_factor": [1.0, 1.3],
                "long_factor": [1.5, 4.0],
            },
        },
        "longrope, short factors up to 10 tokens",
    ),
    "cohere-b5": TinyModel(
        "cohere",
        _COHERE,
        "attention parallel to the MLP, LayerNorm, pairs rotated in float32, norms of each head",
    ),
    "gemma2-a4": TinyModel("gemma2", _GEMMA2, "sandwich norms, window 5 on even layers, softcaps"),
    "gemma2-a5-no-caps": TinyModel(
        "gemma2",
        _GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        "no softcaps",
    ),
    "gemma2-a5-c48": TinyModel(
        "gemma2", _GEMMA2 | {"hidden_size": 48}, "embedding scale sqrt(48), inexact in 16 bits"
    ),
    "llama-outliers": TinyModel(
        "llama",
        _LLAMA,
        "five channels 20 times larger, one value 600 times larger",
        outlier_channels=(3, 8, 13, 21, 30),
        outlier_token=7,
    ),
    "zamba2-a6": TinyModel(
        "zamba2",
        _ZAMBA2,
        "two shared blocks in three hybrid layers, adapters, rotary, two groups",
        gain=ZAMBA2_GAIN,
    ),
    "zamba2-a7": TinyModel(
        "zamba2",
        _ZAMBA2_PLAIN,
        "one shared block, no attention adapters, no rotary, one group, grouped query heads",
        gain=ZAMBA2_GAIN,
    ),
    "zamba2-a8": TinyModel(
        "zamba2",
        _ZAMBA2_PLAIN | {"time_step_min": 0.5, "add_bias_linear": True},
        "a lower limit on dt that bites, biases",
        gain=ZAMBA2_GAIN,
    ),
    "blocks": TinyModel(
        "blocks", {}, "layer norm, activations, packed MLP, explicit masks, biases"
    ),
    "components": TinyModel(
        "components", {}, "divisions: an expert router, embeddings of unit length"
    ),
}
FIRST_OF_TYPE = {
    model.model_type: name
    for name, model in reversed(MODELS.items())
    if name not in ("blocks", "components")
}
"""The first tiny model of each architecture of transformers, by model_type."""
ALIASES = {"llama": "llama-a1", "gemma2": "gemma2-a4", "zamba2": "zamba2-a6"}


def find(name: str) -> tuple[str, TinyModel]:
    """The full name and the entry of a tiny model or alias."""
    full = ALIASES.get(name, name)
    if full in MODELS:
        return full, MODELS[full]
    if full in configurations():
        return full, TinyModel(full, configurations()[full], "as transformers has it")
    known = ", ".join([*MODELS, *ALIASES])
    raise UnknownModelError(
        f"there is no tiny model {name!r}; known are {known}, and the model types that "
        "`inspector architectures --list` lists"
    )


def build(
    name: str,
    dtype: torch.dtype = torch.float32,
    *,
    attention: str = "eager",
    seed: int = DEFAULT_SEED,
) -> torch.nn.Module:
    """The named model in eval mode, its weights drawn in float32 and rounded once to `dtype`.

    Buffers such as `inv_freq` stay float32, as from_pretrained(dtype=...) leaves them.
    """
    full, entry = find(name)
    check_model_type(entry.model_type)
    if full not in MODELS:
        return build_any(full, dtype, attention, seed)
    if entry.model_type == "blocks":
        from .blocks_model import build_blocks

        model = build_blocks(dtype, attention, dict(entry.config))
    elif entry.model_type == "components":
        from .components_model import build_components

        model = build_components(dtype)
    else:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(entry.model_type, **entry.config)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    weights = draw_weights(
        model, seed, zero_centred_norms=_adds_one(entry.model_type), gain=entry.gain
    )
    if entry.outlier_channels or entry.outlier_token is not None:
        _add_outliers(entry, weights["model.embed_tokens.weight"])
    for weight in (w for name, w in weights.items() if name.endswith("q_proj.weight")):
        weight *= entry.score_gain
    load_weights(model, weights)
    return model.eval()


def _adds_one(model_type: str) -> bool:
    """Whether the model's norms multiply by 1 + weight."""
    norm = DECODERS.get(model_type, {}).get("norm") or {}
    return norm.get("weight_offset") == 1


def draw_weights(
    model: torch.nn.Module, seed: int, *, zero_centred_norms: bool = False, gain: float = GAIN
) -> dict[str, torch.Tensor]:
    """Random float32 values for every parameter, from `seed` and its name alone."""
    return {
        name: _draw(name, parameter, seed, zero_centred_norms, gain)
        for name, parameter in model.named_parameters()
    }


def load_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copies the values into the parameters, rounding to their dtype."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def _draw(
    name: str, parameter: torch.Tensor, seed: int, zero_centred_norms: bool, gain: float
) -> torch.Tensor:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))
    values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
    if "embed" in name:
        return values
    is_norm = name.endswith("norm.weight")
    if parameter.dim() > 1 and not is_norm:
        return values * (gain / parameter[0].numel() ** 0.5)
    if name.endswith("A_log"):
        return torch.rand(parameter.shape, generator=generator).mul(3).add(1).log()
    if name.endswith("dt_bias"):
        return values - 2.0
    around_one = name.endswith("mamba.D") or (is_norm and not zero_centred_norms)
    return values * SPREAD + (1.0 if around_one else 0.0)


def _add_outliers(entry: TinyModel, embedding: torch.Tensor) -> None:
    for channel in entry.outlier_channels:
        embedding[:, channel] *= OUTLIER_CHANNEL_GAIN
    if entry.outlier_token is not None:
        value = embedding[entry.outlier_token, 0]
        embedding[entry.outlier_token, 0] = value.sign() * OUTLIER_VALUE_GAIN
