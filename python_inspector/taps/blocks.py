"""The tiny model of models/blocks_model.py: features that LLaMA and Gemma2 do not have."""

from .common import (
    Architecture,
    FunctionTap,
    ModuleTap,
    attention,
    glu_mlp,
    repeat_kv,
    rms_norm,
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
        "LlamaRMSNorm": ModuleTap(rms_norm("variance_epsilon", 0, "before")),
        "Gemma2RMSNorm": ModuleTap(rms_norm("eps", 1, "after")),
        "BlocksMLP": ModuleTap(glu_mlp(), after=after_glu_mlp, keep=PACKED_GLU_CHILDREN),
        "BlocksAttention": ModuleTap(attention("interleaved")),
        "BlocksModel": ModuleTap(internals=LAYER_INTERNALS),
        "BlocksForCausalLM": ModuleTap(after=after_causal_lm(lambda c: None), keep=HEAD_CHILDREN),
    },
    functions={
        "apply_rotary_pos_emb": FunctionTap("rotary", rotary("interleaved")),
        "eager_attention_forward": FunctionTap("sdpa", describe_sdpa(False), EAGER_INTERNALS),
        "repeat_kv": FunctionTap(
            "repeat_kv", repeat_kv, sequence=("sdpa.repeat_keys", "sdpa.repeat_values")
        ),
    },
)
