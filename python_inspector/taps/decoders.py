"""Decoders of equal layers, LLaMA and what differs from it by a row of described.DECODERS: form of
the layer, norms, rotation, packed projections, scales and softcaps. What else differs (windows,
biases, norms of queries and keys), the descriptions read from the modules."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..described import DECODERS
from .common import (
    Architecture,
    FunctionTap,
    ModuleTap,
    attention,
    decoder_layer,
    embedding,
    glu_mlp,
    norm,
    repeat_kv,
    rotary,
)
from .glue import (
    GLU_CHILDREN,
    HEAD_CHILDREN,
    HEAD_INTERNALS,
    LAYER_INTERNALS,
    PACKED_GLU_CHILDREN,
    after_causal_lm,
    after_glu_mlp,
)
from .rope import after_rotary_embedding
from .scores import EAGER_INTERNALS, describe_sdpa

_WHOLE = {"create_causal_mask": "causal_mask"}
_SLIDING = {
    "create_causal_mask": "causal_mask.full_attention",
    "create_sliding_window_causal_mask": "causal_mask.sliding_attention",
}


def _architecture(row: Mapping[str, Any]) -> Architecture:
    name, turn, norms = row["classes"], row["rotation"], row["norm"] or {}
    children = PACKED_GLU_CHILDREN if row["packed"] else GLU_CHILDREN
    table = ModuleTap(after=partial(after_rotary_embedding, table=turn.get("table")))
    layer = ModuleTap(decoder_layer(row["form"], turn, norms), LAYER_INTERNALS)
    head = ModuleTap(
        internals=None if row["logit_cap"] is None else HEAD_INTERNALS,
        after=after_causal_lm(row["logit_cap"], row["logit_scale"]),
        keep=HEAD_CHILDREN,
    )
    modules = {
        f"{name}{'RMSNorm' if norms else 'LayerNorm'}": ModuleTap(norm(norms)),
        f"{name}RotaryEmbedding": table,
        f"{name}MLP": ModuleTap(glu_mlp, after=after_glu_mlp, keep=children),
        f"{name}Attention": ModuleTap(attention(turn, norms)),
        f"{name}DecoderLayer": layer,
        f"{name}ForCausalLM": head,
    }
    scaled = f"{name}TextScaledWordEmbedding"  # not in transformers before 5.5
    if row["scaled_embedding"]:
        modules[scaled] = ModuleTap(embedding)
    return Architecture(
        modules=modules,
        functions={
            "apply_rotary_pos_emb": FunctionTap("rotary", rotary(turn)),
            "eager_attention_forward": FunctionTap("sdpa", describe_sdpa(False), EAGER_INTERNALS),
            "repeat_kv": FunctionTap(
                "repeat_kv", repeat_kv, sequence=("sdpa.repeat_keys", "sdpa.repeat_values")
            ),
        },
        masks=_SLIDING if row["slides"] else _WHOLE,
        optional=frozenset({scaled}),
        softcapping=row["score_cap"],
    )


TAPS = {kind: _architecture(row) for kind, row in DECODERS.items()}
"""By config.model_type."""
