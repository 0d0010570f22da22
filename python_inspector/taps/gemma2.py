"""Gemma2 (transformers' modeling_gemma2.py): sandwich norms of 1 + weight, scaled embedding,
softcaps on scores and logits, sliding and full attention in turn."""

from .common import (
    Architecture,
    FunctionTap,
    ModuleTap,
    Rounding,
    attention,
    decoder_layer,
    embedding,
    glu_mlp,
    repeat_kv,
    rms_norm,
    rotary,
)
from .glue import (
    GLU_CHILDREN,
    HEAD_CHILDREN,
    HEAD_INTERNALS,
    LAYER_INTERNALS,
    after_causal_lm,
    after_glu_mlp,
)
from .rope import after_rotary_embedding
from .scores import EAGER_INTERNALS, describe_sdpa

_NORM: tuple[str, int, Rounding] = ("eps", 1, "after")

TAPS = Architecture(
    modules={
        "Gemma2TextScaledWordEmbedding": ModuleTap(embedding),
        "Gemma2RMSNorm": ModuleTap(rms_norm(*_NORM)),
        "Gemma2RotaryEmbedding": ModuleTap(after=after_rotary_embedding),
        "Gemma2MLP": ModuleTap(glu_mlp(), after=after_glu_mlp, keep=GLU_CHILDREN),
        "Gemma2Attention": ModuleTap(attention("half")),
        "Gemma2DecoderLayer": ModuleTap(decoder_layer("sandwich", "half", _NORM), LAYER_INTERNALS),
        "Gemma2ForCausalLM": ModuleTap(
            internals=HEAD_INTERNALS,
            after=after_causal_lm(lambda config: config.final_logit_softcapping),
            keep=HEAD_CHILDREN,
        ),
    },
    functions={
        "apply_rotary_pos_emb": FunctionTap("rotary", rotary("half")),
        "eager_attention_forward": FunctionTap("sdpa", describe_sdpa(False), EAGER_INTERNALS),
        "repeat_kv": FunctionTap(
            "repeat_kv", repeat_kv, sequence=("sdpa.repeat_keys", "sdpa.repeat_values")
        ),
    },
    masks={
        "create_causal_mask": "causal_mask.full_attention",
        "create_sliding_window_causal_mask": "causal_mask.sliding_attention",
    },
    optional=frozenset({"Gemma2TextScaledWordEmbedding"}),  # before 5.5
    softcapping="attn_logit_softcapping",
)
