"""LLaMA (transformers' modeling_llama.py): pre-norm, half-split rotary, SiLU-gated MLP."""

from python_inspector.taps.common import (
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
from python_inspector.taps.glue import (
    GLU_CHILDREN,
    HEAD_CHILDREN,
    LAYER_INTERNALS,
    after_causal_lm,
    after_glu_mlp,
)
from python_inspector.taps.rope import after_rotary_embedding
from python_inspector.taps.scores import EAGER_INTERNALS, describe_sdpa

_NORM: tuple[str, int, Rounding] = ("variance_epsilon", 0, "before")

TAPS = Architecture(
    modules={
        "LlamaRMSNorm": ModuleTap(rms_norm(*_NORM)),
        "LlamaRotaryEmbedding": ModuleTap(after=after_rotary_embedding),
        "LlamaMLP": ModuleTap(glu_mlp(), after=after_glu_mlp, keep=GLU_CHILDREN),
        "LlamaAttention": ModuleTap(attention("half")),
        "LlamaDecoderLayer": ModuleTap(decoder_layer("pre_norm", "half", _NORM), LAYER_INTERNALS),
        "LlamaForCausalLM": ModuleTap(after=after_causal_lm(lambda c: None), keep=HEAD_CHILDREN),
    },
    functions={
        "apply_rotary_pos_emb": FunctionTap("rotary", rotary("half")),
        "eager_attention_forward": FunctionTap("sdpa", describe_sdpa(False), EAGER_INTERNALS),
        "repeat_kv": FunctionTap(
            "repeat_kv", repeat_kv, sequence=("sdpa.repeat_keys", "sdpa.repeat_values")
        ),
    },
    masks={"create_causal_mask": "causal_mask"},
)
