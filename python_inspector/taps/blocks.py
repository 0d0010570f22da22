"""The tiny model of models/blocks_model.py: features that LLaMA and Gemma2 do not have."""

from .common import (
    LLAMA_NORM,
    Architecture,
    FunctionTap,
    ModuleTap,
    attention,
    glu_mlp,
    norm,
    repeat_kv,
    rotary,
)
from .glue import (
    HEAD_CHILDREN,
    LAYER_INTERNALS,
    PACKED_GLU_CHILDREN,
    after_causal_lm,
    after_glu_mlp,
)
from .scores import EAGER_INTERNALS, describe_sdpa

TAPS = Architecture(
    modules={
        "LlamaRMSNorm": ModuleTap(norm(LLAMA_NORM)),
        "Gemma2RMSNorm": ModuleTap(norm({"weight_offset": 1, "rounding": "after"})),
        "BlocksMLP": ModuleTap(glu_mlp, after=after_glu_mlp, keep=PACKED_GLU_CHILDREN),
        "BlocksAttention": ModuleTap(attention({"style": "interleaved"})),
        "BlocksModel": ModuleTap(internals=LAYER_INTERNALS),
        "BlocksForCausalLM": ModuleTap(after=after_causal_lm(), keep=HEAD_CHILDREN),
    },
    functions={
        "apply_rotary_pos_emb": FunctionTap("rotary", rotary({"style": "interleaved"})),
        "eager_attention_forward": FunctionTap("sdpa", describe_sdpa(False), EAGER_INTERNALS),
        "repeat_kv": FunctionTap(
            "repeat_kv", repeat_kv, sequence=("sdpa.repeat_keys", "sdpa.repeat_values")
        ),
    },
)
