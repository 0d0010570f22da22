"""Which inputs, weights, parameters and outputs a checkpoint of each block has.

The table of fixtures/README.md as data. A name ending in `?` is optional; axes are given where the
format fixes them, None where they depend on the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Axes = str | None

MASK = "causal window query_offset key_offset fully_masked"
SDPA = f"{MASK} scale softcap max_abs_score"
HIDDEN = "batch token channel"
QUERY = "batch head token head_dim"
KEY = "batch kv_head token head_dim"
CACHE = "batch kv_head kv_token head_dim"
TABLE = "batch token head_dim"
SCORES = "batch head token kv_token"
KEY_VALID = "batch kv_token"

_STATE: dict[str, Axes] = {"keys_before?": CACHE, "values_before?": CACHE}
_ATTENTION_INPUTS: dict[str, Axes] = {
    "hidden": HIDDEN,
    "cos": TABLE,
    "sin": TABLE,
    **_STATE,
    "key_valid?": KEY_VALID,
    "mask?": SCORES,
}
_ATTENTION_OUTPUTS: dict[str, Axes] = {"out": HIDDEN, "keys_after?": CACHE, "values_after?": CACHE}


@dataclass(frozen=True)
class BlockRow:
    """One row of the table; `weights` is None where the names are the model's own."""

    inputs: Mapping[str, Axes]
    outputs: Mapping[str, Axes]
    params: str = ""
    weights: str | None = ""
    nested: Mapping[str, str] = field(default_factory=dict)
    """Keys of the parameters that are objects."""


def _pointwise(params: str = "") -> BlockRow:
    return BlockRow({"x": None}, {"out": None}, params)


BLOCKS: dict[str, BlockRow] = {
    "embedding": BlockRow({"ids": "batch token"}, {"out": HIDDEN}, "scale", "weight"),
    "rotary_frequencies": BlockRow(
        {},
        {"inv_freq": "head_dim", "attention_scaling": "group"},
        "type dim theta factor? max_position? original_max_position? length? low_freq_factor? "
        "high_freq_factor? beta_fast? beta_slow? truncate? mscale? mscale_all_dim? "
        "attention_factor? short_factor? long_factor?",
    ),
    "rotary_table": BlockRow(
        {"positions": "batch token", "inv_freq": "head_dim"},
        {"cos": TABLE, "sin": TABLE},
        "attention_scaling",
    ),
    "rotary": BlockRow(
        {"q": QUERY, "k": KEY, "cos": TABLE, "sin": TABLE}, {"q": QUERY, "k": KEY}, "style"
    ),
    "rms_norm": BlockRow({"x": None}, {"out": None}, "eps weight_offset rounding", "weight"),
    "layer_norm": BlockRow({"x": None}, {"out": None}, "eps", "weight bias?"),
    "linear": BlockRow({"x": None}, {"out": None}, "", "weight bias?"),
    "activation": _pointwise("function"),
    "glu_activation": BlockRow({"gate": None, "up": None}, {"out": None}, "function"),
    "add": BlockRow({"a": None, "b": None}, {"out": None}),
    "scale": _pointwise("factor operation"),
    "softcap": _pointwise("cap"),
    "repeat_kv": BlockRow({"x": CACHE}, {"out": "batch head kv_token head_dim"}, "repeats"),
    "matmul": BlockRow({"a": None, "b": None}, {"out": None}, "transpose_b"),
    "masked_add": BlockRow({"x": SCORES, "mask": SCORES}, {"out": SCORES}),
    "softmax": _pointwise(),
    "kv_cache": BlockRow(
        {"k": KEY, "v": KEY, **_STATE},
        {"keys": CACHE, "values": CACHE, "keys_after": CACHE, "values_after": CACHE},
        "kind window",
    ),
    "causal_mask": BlockRow(
        {"key_valid?": KEY_VALID}, {"mask": SCORES}, f"{MASK} form queries keys batch"
    ),
    "sdpa": BlockRow(
        {"q": QUERY, "k": CACHE, "v": CACHE, "key_valid?": KEY_VALID, "mask?": SCORES},
        {"out": "batch token head head_dim"},
        SDPA,
    ),
    "attention": BlockRow(
        _ATTENTION_INPUTS,
        _ATTENTION_OUTPUTS,
        f"{SDPA} head_dim style cache",
        " ".join(f"{p}_proj.weight {p}_proj.bias?" for p in "qkvo"),
    ),
    "glu_mlp": BlockRow({"hidden": HIDDEN}, {"out": HIDDEN}, "function", None),
    "decoder_layer": BlockRow(
        _ATTENTION_INPUTS,
        _ATTENTION_OUTPUTS,
        "form norm attention mlp",
        None,
        {
            "norm": "eps weight_offset rounding",
            "attention": f"{SDPA} head_dim style cache",
            "mlp": "function",
        },
    ),
    "lm_head": BlockRow(
        {"hidden": HIDDEN}, {"out": "batch token vocab"}, "logits_to_keep softcap", "weight bias?"
    ),
}
"""Every block but `module`, whose inputs and outputs are whatever the module had."""


def split_names(names: str) -> tuple[set[str], set[str]]:
    """The required names, and all allowed ones."""
    words = names.split()
    return {w for w in words if not w.endswith("?")}, {w.removesuffix("?") for w in words}
