"""LLaMA (transformers' modeling_llama.py): pre-norm, half-split rotary, SiLU-gated MLP; and models
that differ from it by a window, biases or norms of queries and keys, which the shared blocks read
from their modules."""

from collections.abc import Mapping

from .common import (
    Architecture,
    FunctionTap,
    ModuleTap,
    Rounding,
    attention,
    decoder_layer,
    glu_mlp,
    repeat_kv,
    rms_norm,
    rotary,
)
from .glue import (
    GLU_CHILDREN,
    HEAD_CHILDREN,
    LAYER_INTERNALS,
    after_causal_lm,
    after_glu_mlp,
)
from .rope import after_rotary_embedding
from .scores import EAGER_INTERNALS, describe_sdpa

LIKE_LLAMA = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Those whose table is this one, by config.model_type, with the prefix of their classes."""

_NORM: tuple[str, int, Rounding] = ("variance_epsilon", 0, "before")


def _like_llama(prefix: str, masks: Mapping[str, str]) -> Architecture:
    """The table of an architecture whose classes are LLaMA's under another name."""
    layer = ModuleTap(decoder_layer("pre_norm", "half", _NORM), LAYER_INTERNALS)
    head = ModuleTap(after=after_causal_lm(lambda c: None), keep=HEAD_CHILDREN)
    return Architecture(
        modules={
            f"{prefix}RMSNorm": ModuleTap(rms_norm(*_NORM)),
            f"{prefix}RotaryEmbedding": ModuleTap(after=after_rotary_embedding),
            f"{prefix}MLP": ModuleTap(glu_mlp(), after=after_glu_mlp, keep=GLU_CHILDREN),
            f"{prefix}Attention": ModuleTap(attention("half", _NORM)),
            f"{prefix}DecoderLayer": layer,
            f"{prefix}ForCausalLM": head,
        },
        functions={
            "apply_rotary_pos_emb": FunctionTap("rotary", rotary("half")),
            "eager_attention_forward": FunctionTap("sdpa", describe_sdpa(False), EAGER_INTERNALS),
            "repeat_kv": FunctionTap(
                "repeat_kv", repeat_kv, sequence=("sdpa.repeat_keys", "sdpa.repeat_values")
            ),
        },
        masks=masks,
    )


_SLIDING = {
    "create_causal_mask": "causal_mask.full_attention",
    "create_sliding_window_causal_mask": "causal_mask.sliding_attention",
}

TAPS = {
    kind: _like_llama(
        prefix, {"create_causal_mask": "causal_mask"} if kind == "llama" else _SLIDING
    )
    for kind, prefix in LIKE_LLAMA.items()
}
"""By config.model_type."""
