"""Descriptions of blocks that architectures share; an architecture's table puts names to them.

Each function reads one call and says which tensors and numbers are the block's; none computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import activations
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from python_inspector.capture import (
    CACHED,
    HIDDEN,
    KEY,
    QUERY,
    REPEATED,
    TABLE,
    Block,
    Call,
    Frame,
    Internals,
    Named,
    RecordError,
    Twin,
    by_dimensions,
    only_out,
)
from python_inspector.format import DTYPES

if TYPE_CHECKING:
    from python_inspector.recorder import Recorder

Rounding = Literal["before", "after"]
Describe = Callable[[Call], Block | None]
After = Callable[["Recorder", Frame, Any], None]


@dataclass(frozen=True)
class ModuleTap:
    """How a module class becomes a block. `after` records what else its call held, once it is over,
    from the calls of the children named in `keep`."""

    describe: Describe | None = None
    internals: Internals | None = None
    after: After | None = None
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class FunctionTap:
    """How a function of the modeling file becomes a block, called `name` in ids."""

    name: str
    describe: Describe
    internals: Internals | None = None
    sequence: tuple[str, ...] = ()
    """Names of the first, second ... call within one call of the caller, instead of `name`."""


@dataclass(frozen=True)
class Architecture:
    """The taps of one model_type: module classes by name, functions of the modeling file by name,
    and the functions that create masks with their names in ids."""

    modules: Mapping[str, ModuleTap]
    functions: Mapping[str, FunctionTap] = field(default_factory=dict)
    masks: Mapping[str, str] = field(default_factory=dict)
    softcapping: str | None = None
    """The config entry of a softcap on attention scores, which sdpa would drop."""


def weights_of(module: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """All parameters by their name relative to the module."""
    return {} if module is None else dict(module.named_parameters(remove_duplicate=False))


def first_argument(call: Call) -> torch.Tensor:
    """The tensor that a one-input module was given, whatever its name."""
    for value in call.arguments.values():
        if isinstance(value, torch.Tensor):
            return value
    raise RecordError(f"[{call.path}] was called without a tensor")


def linear(call: Call) -> Block:
    """torch.nn.Linear: out = x weight^T + bias, weight [out, in]."""
    x = by_dimensions(first_argument(call))
    return Block("linear", {"x": x}, only_out(x[1]), weights=weights_of(call.module))


def embedding(call: Call) -> Block:
    """Rows of weight by id, times a scale rounded to the weight's dtype as the model does."""
    assert call.module is not None
    ids = first_argument(call)
    weight = call.module.weight
    assert isinstance(weight, torch.Tensor)
    scale = getattr(call.module, "embed_scale", None)
    if isinstance(scale, torch.Tensor):
        scale = scale.to(weight.dtype).item()
    axes = ("batch", "token") if ids.ndim == 2 else ("token",)
    return Block(
        "embedding",
        {"ids": (ids, axes)},
        only_out((*axes, "channel")),
        params={"scale": 1.0 if scale is None else float(scale)},
        weights={"weight": weight},
    )


def layer_norm(call: Call) -> Block | None:
    module = call.module
    assert isinstance(module, torch.nn.LayerNorm)
    if module.weight is None or module.bias is None or len(module.normalized_shape) != 1:
        return None
    x = by_dimensions(first_argument(call))
    return Block("layer_norm", {"x": x}, only_out(x[1]), {"eps": module.eps}, weights_of(module))


def rms_norm(eps: str, weight_offset: int, rounding: Rounding) -> Callable[[Call], Block]:
    """x rsqrt(mean(x^2) + eps) times weight (+ 1); rounded to storage before or after the weight.

    `eps` names the module's attribute.
    """

    def describe(call: Call) -> Block:
        x = by_dimensions(first_argument(call))
        params = norm_params(call.module, eps, weight_offset, rounding)
        return Block("rms_norm", {"x": x}, only_out(x[1]), params, weights_of(call.module))

    return describe


def norm_params(module: Any, eps: str, weight_offset: int, rounding: str) -> dict[str, Any]:
    return {
        "eps": float(getattr(module, eps)),
        "weight_offset": weight_offset,
        "rounding": rounding,
    }


def activation_name(module: Any) -> str | None:
    """The format's name of an activation module; None for one that it does not know."""
    if isinstance(module, (activations.SiLUActivation, torch.nn.SiLU)):
        return "silu"
    if isinstance(module, torch.nn.Tanh):
        return "tanh"
    if isinstance(module, torch.nn.GELU):
        return "gelu" if module.approximate == "none" else "gelu_pytorch_tanh"
    if isinstance(module, activations.GELUTanh):
        return "gelu_pytorch_tanh" if "tanh_python" not in str(module.act) else None
    if isinstance(module, activations.GELUActivation):
        return "gelu" if "gelu_python" not in str(module.act) else None
    return None


def activation(call: Call) -> Block | None:
    name = activation_name(call.module)
    if name is None:
        return None
    x = by_dimensions(first_argument(call))
    return Block("activation", {"x": x}, only_out(x[1]), {"function": name})


def rotary(style: Literal["half", "interleaved"]) -> Callable[[Call], Block]:
    """apply_rotary_pos_emb(q, k, cos, sin)."""

    def describe(call: Call) -> Block:
        if call.get("unsqueeze_dim") not in (None, 1):
            raise RecordError(f"[{call.path}] rotary with unsqueeze_dim is not known")

        def outputs(result: Any, twin: Twin) -> dict[str, Named]:
            return {"q": (result[0], QUERY), "k": (result[1], KEY)}

        inputs: dict[str, Named] = {
            "q": (call["q"], QUERY),
            "k": (call["k"], KEY),
            "cos": (call["cos"], TABLE),
            "sin": (call["sin"], TABLE),
        }
        return Block("rotary", inputs, outputs, {"style": style})

    return describe


def repeat_kv(call: Call) -> Block | None:
    """repeat_kv(hidden_states, n_rep): each kv head `n_rep` times in a row."""
    if call["n_rep"] == 1:
        return None
    inputs: dict[str, Named] = {"x": (call["hidden_states"], CACHED)}
    return Block("repeat_kv", inputs, only_out(REPEATED), {"repeats": int(call["n_rep"])})


def glu_mlp(function: str = "act_fn") -> Callable[[Call], Block | None]:
    """down(act(gate(x)) * up(x)); `function` names the activation child."""

    def describe(call: Call) -> Block | None:
        name = activation_name(getattr(call.module, function))
        if name is None:
            return None
        hidden = by_dimensions(first_argument(call))
        return Block(
            "glu_mlp",
            {"hidden": hidden},
            only_out(hidden[1]),
            {"function": name},
            weights_of(call.module),
        )

    return describe


def cache_layer(cache: Any, index: int, path: str) -> Any | None:
    """The cache's layer, None if it does not exist yet; RecordError for a cache of another kind."""
    if type(cache) is not DynamicCache or cache.offloading:
        raise RecordError(
            f"[{path}] unsupported cache {type(cache).__name__}: only a DynamicCache that is not "
            "offloaded can be recorded; pass past_key_values=DynamicCache(config=model.config)"
        )
    if index >= len(cache.layers):
        return None
    layer = cache.layers[index]
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
        raise RecordError(f"[{path}] unsupported cache layer {type(layer).__name__}")
    if getattr(layer, "record_past", False):
        raise RecordError(f"[{path}] unsupported cache: its sliding layers record their past")
    return layer


def cache_params(cache: Any, index: int, path: str) -> dict[str, Any]:
    window = getattr(cache_layer(cache, index, path), "sliding_window", None)
    return {"kind": "dynamic", "window": None if window is None else int(window)}


def cache_state(cache: Any, index: int, path: str) -> dict[str, Named]:
    """keys_before and values_before; nothing while the layer is empty."""
    layer = cache_layer(cache, index, path)
    if layer is None or not layer.is_initialized or layer.keys.numel() == 0:
        return {}
    return {"keys_before": (layer.keys, CACHED), "values_before": (layer.values, CACHED)}


def cache_after(cache: Any, index: int, twin: Twin) -> dict[str, Named]:
    layer = twin(cache).layers[index]
    return {"keys_after": (layer.keys, CACHED), "values_after": (layer.values, CACHED)}


def kv_cache(call: Call) -> Block:
    """Cache.update(key_states, value_states, layer_idx) -> keys and values for attention."""
    cache, index = call["self"], call["layer_idx"]

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        returned: dict[str, Named] = {"keys": (result[0], CACHED), "values": (result[1], CACHED)}
        return returned | cache_after(cache, index, twin)

    state = cache_state(cache, index, call.path)
    new: dict[str, Named] = {"k": (call["key_states"], KEY), "v": (call["value_states"], KEY)}
    return Block("kv_cache", new | state, outputs, cache_params(cache, index, call.path))


def untapped_kv_cache(call: Call) -> Block | None:
    """kv_cache where nothing is known of the architecture: only a cache that is known."""
    try:
        return kv_cache(call) if call["key_states"].ndim == 4 else None
    except RecordError as error:
        call.recorder.warn(f"{error}; its updates are not recorded")
        return None


def attention_inputs(call: Call) -> dict[str, Named]:
    cos, sin = call["position_embeddings"]
    return {"hidden": (call["hidden_states"], HIDDEN), "cos": (cos, TABLE), "sin": (sin, TABLE)}


def attention(style: Literal["half", "interleaved"]) -> Callable[[Call], Block]:
    """A self-attention module: projections, rotary, cache, attention function, o_proj."""

    def describe(call: Call) -> Block:
        module: Any = call.module
        cache, index = call.get("past_key_values"), module.layer_idx
        inputs, params = attention_inputs(call), {"head_dim": module.head_dim, "style": style}
        params["cache"] = None
        if cache is not None:
            params["cache"] = cache_params(cache, index, call.path)
            inputs |= cache_state(cache, index, call.path)

        def outputs(result: Any, twin: Twin) -> dict[str, Named]:
            out: dict[str, Named] = {"out": (result[0], HIDDEN)}
            return out if cache is None else out | cache_after(cache, index, twin)

        weights = weights_of(module)
        return Block("attention", inputs, outputs, params, weights, uses_attention="")

    return describe


def decoder_layer(
    form: Literal["pre_norm", "sandwich"],
    style: Literal["half", "interleaved"],
    norm: tuple[str, int, Rounding],
) -> Callable[[Call], Block | None]:
    """A decoder layer; `norm` is eps attribute, weight offset and rounding of its norms."""

    def describe(call: Call) -> Block | None:
        module: Any = call.module
        inner = Call(call.path, module.self_attn, call.arguments, call.recorder)
        parts = attention(style)(inner)
        function = activation_name(module.mlp.act_fn)
        if function is None:
            return None
        params = {
            "form": form,
            "norm": norm_params(module.input_layernorm, *norm),
            "attention": parts.params,
            "mlp": {"function": function},
        }
        return Block(
            "decoder_layer",
            parts.inputs,
            only_out(HIDDEN),
            params,
            weights_of(module),
            uses_attention="attention",
        )

    return describe


def anything(call: Call) -> Block | None:
    """A module that no tap knows: its tensors as they are."""
    inputs = {k: by_dimensions(v) for k, v in call.arguments.items() if _is_storable(v)}
    return Block("module", inputs, any_output, weights=weights_of(call.module))


def any_output(result: Any, twin: Twin) -> dict[str, Named]:
    """The first tensor of whatever a module returned; nothing if there is none."""
    items = result if isinstance(result, (tuple, list)) else [result]
    tensors = [item for item in items if _is_storable(item)]
    return {"out": by_dimensions(tensors[0])} if tensors else {}


def _is_storable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in DTYPES


GENERIC: dict[type[torch.nn.Module], ModuleTap] = {
    torch.nn.Linear: ModuleTap(linear),
    torch.nn.Embedding: ModuleTap(embedding),
    torch.nn.LayerNorm: ModuleTap(layer_norm),
    torch.nn.SiLU: ModuleTap(activation),
    torch.nn.GELU: ModuleTap(activation),
    torch.nn.Tanh: ModuleTap(activation),
    activations.SiLUActivation: ModuleTap(activation),
    activations.GELUTanh: ModuleTap(activation),
    activations.GELUActivation: ModuleTap(activation),
}
"""Modules that are the same block wherever they stand."""
