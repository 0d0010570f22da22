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
COLUMNS = "batch channel token"
CONV_STATE = "batch channel state"
SSM_STATE = "batch head head_dim state"
HEADS = "batch token head head_dim"
GROUPS = "batch token group state"
RMS_NORM = "eps weight_offset rounding"
KEY_VALID = "batch kv_token"

_STATE: dict[str, Axes] = {"keys_before?": CACHE, "values_before?": CACHE}
_ATTENTION_INPUTS: dict[str, Axes] = {
    "hidden": HIDDEN,
    "cos?": TABLE,
    "sin?": TABLE,
    **_STATE,
    "key_valid?": KEY_VALID,
    "mask?": SCORES,
}
_ATTENTION_OUTPUTS: dict[str, Axes] = {"out": HIDDEN, "keys_after?": CACHE, "values_after?": CACHE}
_ATTENTION = f"{SDPA} head_dim style cache rotary? adapters? call?"
_MLP = "function adapter? call?"

_SCAN = "form chunk_size dt_min dt_max"
_GATED_NORM = "eps group_size"
_MIXER = f"{_SCAN} heads groups state head_dim norm activation"
_MIXER_STATE: dict[str, Axes] = {
    "token_valid?": "batch token",
    "conv_before?": CONV_STATE,
    "ssm_before?": SSM_STATE,
}
_SHARED: Mapping[str, str] = {"norm": RMS_NORM, "attention": _ATTENTION, "mlp": _MLP}


@dataclass(frozen=True)
class BlockRow:
    """One row of the table; `weights` is None where the names are the model's own.

    An N in the name of a weight stands for any number.
    """

    inputs: Mapping[str, Axes]
    outputs: Mapping[str, Axes]
    params: str = ""
    weights: str | None = ""
    nested: Mapping[str, str] = field(default_factory=dict)
    """Keys of the parameters that are objects."""


def _pointwise(params: str = "") -> BlockRow:
    return BlockRow({"x": None}, {"out": None}, params)


_PAIR = BlockRow({"a": None, "b": None}, {"out": None})

BLOCKS: dict[str, BlockRow] = {
    "embedding": BlockRow(
        {"ids": "batch token", "given?": "batch token"}, {"out": HIDDEN}, "scale", "weight"
    ),
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
    "rms_norm": BlockRow({"x": None}, {"out": None}, RMS_NORM, "weight"),
    "layer_norm": BlockRow({"x": None}, {"out": None}, "eps", "weight bias?"),
    "linear": BlockRow({"x": None}, {"out": None}, "", "weight bias?"),
    "activation": _pointwise("function"),
    "glu_activation": BlockRow({"gate": None, "up": None}, {"out": None}, "function"),
    "add": _PAIR,
    "scale": _pointwise("factor operation"),
    "mul": _PAIR,
    "div": _PAIR,
    "add_scalar": _pointwise("value"),
    "cast": _pointwise(),
    "concat": BlockRow({"a": None, "b": None}, {"out": None}, "axis"),
    "slice": _pointwise("axis begin end"),
    "permute": _pointwise("axes"),
    "mask_fill": BlockRow({"x": None, "mask": None}, {"out": None}, "value"),
    "position_ids": BlockRow({"token_valid?": "batch token"}, {"out": "batch token"}, "offset"),
    "conv1d": BlockRow(
        {"x": COLUMNS, "weight": "channel group state", "bias?": "channel"},
        {"out": COLUMNS},
        "padding",
    ),
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
    "static_kv_cache": BlockRow(
        {"k": KEY, "v": KEY, "keys_before": CACHE, "values_before": CACHE},
        {"keys": CACHE, "values": CACHE, "keys_after": CACHE, "values_after": CACHE},
        "max_length window seen",
    ),
    "conv_cache": BlockRow(
        {"x": COLUMNS, "state_before?": CONV_STATE},
        {"out": COLUMNS, "state_after": CONV_STATE},
        "kernel",
    ),
    "ssm_cache": BlockRow({"state": SSM_STATE}, {"out": SSM_STATE, "state_after": SSM_STATE}),
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
        _ATTENTION,
        " ".join(f"{p}_proj.weight {p}_proj.bias?" for p in "qkvo")
        + "".join(f" linear_{p}_adapter_list.N.{i}.weight?" for p in "qkv" for i in "01"),
    ),
    "glu_mlp": BlockRow({"hidden": HIDDEN}, {"out": HIDDEN}, _MLP, None),
    "decoder_layer": BlockRow(
        _ATTENTION_INPUTS,
        _ATTENTION_OUTPUTS,
        "form norm attention mlp",
        None,
        _SHARED,
    ),
    "lm_head": BlockRow(
        {"hidden": HIDDEN}, {"out": "batch token vocab"}, "logits_to_keep softcap", "weight bias?"
    ),
    "causal_conv1d": BlockRow(
        {"x": HIDDEN, "token_valid?": "batch token", "state_before?": CONV_STATE},
        {"out": HIDDEN, "state_after?": CONV_STATE},
        "activation",
        "weight bias",
    ),
    "ssd_scan": BlockRow(
        {
            "x": HEADS,
            "dt": "batch token head",
            "b": GROUPS,
            "c": GROUPS,
            "state_before?": SSM_STATE,
        },
        {"y": HEADS, "state_after?": SSM_STATE},
        _SCAN,
        "A_log D dt_bias",
    ),
    "gated_rms_norm": BlockRow(
        {"x": HIDDEN, "gate": HIDDEN}, {"out": HIDDEN}, _GATED_NORM, "weight"
    ),
    "mamba2_mixer": BlockRow(
        {"hidden": HIDDEN, **_MIXER_STATE},
        {"out": HIDDEN, "conv_after?": CONV_STATE, "ssm_after?": SSM_STATE},
        _MIXER,
        "A_log D dt_bias conv1d.weight conv1d.bias norm.weight in_proj.weight in_proj.bias? "
        "out_proj.weight out_proj.bias?",
        {"norm": _GATED_NORM},
    ),
    "low_rank_adapter": BlockRow({"x": None}, {"out": None}, "", "0.weight 1.weight"),
    "shared_transformer": BlockRow(
        {"original": HIDDEN, **_ATTENTION_INPUTS},
        {"out": HIDDEN},
        "block call norm attention mlp",
        None,
        _SHARED,
    ),
    "mamba_layer": BlockRow(
        {"hidden": HIDDEN, "transformer?": HIDDEN, **_MIXER_STATE},
        {"out": HIDDEN},
        "norm mamba",
        None,
        {"norm": RMS_NORM, "mamba": _MIXER},
    ),
    "hybrid_layer": BlockRow(
        {"original": HIDDEN, **_ATTENTION_INPUTS, **_MIXER_STATE},
        {"out": HIDDEN},
        "block call norm attention mlp mamba",
        None,
        {**_SHARED, "mamba": _MIXER},
    ),
}
"""Every block but `module`, whose inputs and outputs are whatever the module had."""


def split_names(names: str) -> tuple[set[str], set[str]]:
    """The required names, and all allowed ones."""
    words = names.split()
    return {w for w in words if not w.endswith("?")}, {w.removesuffix("?") for w in words}
