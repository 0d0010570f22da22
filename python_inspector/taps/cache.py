"""Caches: their updates as blocks, and the states that other blocks read from and leave in them."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from ..compatibility import (
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)
from ..errors import RecordError
from ..format.axes import CACHED, KEY, Named
from ..trace.replay import Twin
from .calls import Block, Call

COLUMNS = ("batch", "channel", "token")
CONV_STATE = ("batch", "channel", "state")
SSM_STATE = ("batch", "head", "head_dim", "state")

_CACHE_LAYERS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)


def cache_layer(cache: Any, index: int, path: str) -> Any | None:
    """The cache's layer, None if it does not exist yet; RecordError for a cache of another kind."""
    if type(cache) not in (DynamicCache, StaticCache) or cache.offloading:
        raise RecordError(
            f"[{path}] unsupported cache {type(cache).__name__}: only a DynamicCache or a "
            "StaticCache that is not offloaded can be recorded; pass "
            "past_key_values=DynamicCache(config=model.config)"
        )
    if index >= len(cache.layers):
        return None
    layer = cache.layers[index]
    if type(layer) not in _CACHE_LAYERS:
        raise RecordError(f"[{path}] unsupported cache layer {type(layer).__name__}")
    if getattr(layer, "record_past", False):
        raise RecordError(f"[{path}] unsupported cache: its layers record their past")
    return layer


def cache_params(cache: Any, index: int, path: str) -> dict[str, Any]:
    layer = cache_layer(cache, index, path)
    if isinstance(layer, StaticLayer):
        return {"kind": "static"} | _static_params(layer)
    window = getattr(layer, "sliding_window", None)
    return {"kind": "dynamic", "window": None if window is None else int(window)}


def _static_params(layer: StaticLayer) -> dict[str, Any]:
    """Slots of the buffers, those of a sliding layer's window, and tokens seen before the call."""
    slots = int(layer.max_cache_len)
    window = slots if layer.is_sliding else None
    return {"max_length": slots, "window": window, "seen": int(layer.get_seq_length())}


def cache_state(cache: Any, index: int, path: str) -> dict[str, Named]:
    """keys_before and values_before; nothing while the layer is empty."""
    layer = cache_layer(cache, index, path)
    if layer is None or not layer.is_initialized or layer.keys.numel() == 0:
        return {}
    return {"keys_before": (layer.keys, CACHED), "values_before": (layer.values, CACHED)}


def cache_after(cache: Any, index: int, twin: Twin) -> dict[str, Named]:
    return _keys_and_values(index, twin(cache))


def _keys_and_values(index: int, cache: Any) -> dict[str, Named]:
    layer = cache.layers[index]
    return {"keys_after": (layer.keys, CACHED), "values_after": (layer.values, CACHED)}


def kv_cache(call: Call) -> Block:
    """Cache.update(key_states, value_states, layer_idx) -> keys and values for attention."""
    cache, index = call["self"], call["layer_idx"]
    layer = cache_layer(cache, index, call.path)

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        returned: dict[str, Named] = {"keys": (result[0], CACHED), "values": (result[1], CACHED)}
        return returned | cache_after(cache, index, twin)

    new: dict[str, Named] = {"k": (call["key_states"], KEY), "v": (call["value_states"], KEY)}
    state = cache_state(cache, index, call.path)
    after = partial(_keys_and_values, index)
    if not isinstance(layer, StaticLayer):
        params = cache_params(cache, index, call.path)
        return Block("kv_cache", new | state, outputs, params, state=after)
    params = _static_params(layer)
    if not state:  # transformers allocates the buffers in this call
        for name, (fresh, _) in zip(("keys_before", "values_before"), new.values(), strict=True):
            shape = (*fresh.shape[:2], params["max_length"], fresh.shape[3])
            state[name] = (fresh.new_zeros(shape), CACHED)
    return Block("static_kv_cache", new | state, outputs, params, state=after)


def untapped_kv_cache(call: Call) -> Block | None:
    """kv_cache where nothing is known of the architecture: only a cache that is known."""
    try:
        return kv_cache(call) if call["key_states"].ndim == 4 else None
    except RecordError as error:
        call.recorder.warn(f"{error}; its updates are not recorded")
        return None


def conv_cache(call: Call) -> Block:
    """Cache.update_conv_state(columns, layer_idx) -> the columns for the convolution."""
    cache, index = call["self"], call["layer_idx"]
    inputs: dict[str, Named] = {"x": (call["conv_states"], COLUMNS)}
    before = conv_state(cache, index, call.path)
    if before is not None:
        inputs["state_before"] = (before, CONV_STATE)

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        after = twin(cache).layers[index].conv_states[0]
        return {"out": (result, COLUMNS), "state_after": (after, CONV_STATE)}

    kernel = call.get("conv_kernel_size") or call["conv_states"].shape[-1]
    return Block("conv_cache", inputs, outputs, {"kernel": int(kernel)})


def ssm_cache(call: Call) -> Block:
    """Cache.update_recurrent_state(state, layer_idx): the state of a scan, kept."""
    cache, index = call["self"], call["layer_idx"]
    inputs: dict[str, Named] = {"state": (call["recurrent_states"], SSM_STATE)}

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        after = twin(cache).layers[index].recurrent_states[0]
        return {"out": (result, SSM_STATE), "state_after": (after, SSM_STATE)}

    return Block("ssm_cache", inputs, outputs)


def conv_state(cache: Any, index: int, path: str) -> torch.Tensor | None:
    """The last columns that a causal convolution saw [batch, channel, kernel]; None at first."""
    layer = _with_past(cache, index, path)
    return None if layer is None else layer.conv_states[0]


def ssm_state(cache: Any, index: int, path: str) -> torch.Tensor | None:
    """The state of a scan [batch, head, head_dim, state], float32; None at first."""
    layer = _with_past(cache, index, path)
    return None if layer is None else layer.recurrent_states[0]


def mixer_state(cache: Any, index: int, path: str) -> dict[str, Named]:
    """conv_before and ssm_before; nothing while there are none."""
    states = {
        "conv_before": (conv_state(cache, index, path), CONV_STATE),
        "ssm_before": (ssm_state(cache, index, path), SSM_STATE),
    }
    return {name: (state, axes) for name, (state, axes) in states.items() if state is not None}


def mixer_after(cache: Any, index: int, twin: Twin) -> dict[str, Named]:
    layer = twin(cache).layers[index]
    return {
        "conv_after": (layer.conv_states[0], CONV_STATE),
        "ssm_after": (layer.recurrent_states[0], SSM_STATE),
    }


def conv_after(index: int, cache: Any) -> dict[str, Named]:
    """What a convolution leaves in a cache."""
    return {"state_after": (cache.layers[index].conv_states[0], CONV_STATE)}


def ssm_after(index: int, cache: Any) -> dict[str, Named]:
    """What a scan leaves in a cache."""
    return {"state_after": (cache.layers[index].recurrent_states[0], SSM_STATE)}


def copy_of_conv_layer(cache: Any, index: int, path: str) -> Any | None:
    """A mixer's cache layer with a convolution state of its own, as it is now."""
    layer = None if cache is None else cache_layer(cache, index, path)
    if layer is None:
        return None
    new = copy.copy(layer)
    for name, value in vars(layer).items():
        setattr(new, name, dict(value) if isinstance(value, dict) else value)
    new.conv_states = {k: None if v is None else v.clone() for k, v in layer.conv_states.items()}
    return new


def _with_past(cache: Any, index: int, path: str) -> Any | None:
    layer = None if cache is None else cache_layer(cache, index, path)
    return layer if layer is not None and layer.has_previous_state[0] else None
