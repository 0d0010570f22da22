"""The cache as the block `kv_cache`, and the states that other blocks read from and leave in it."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from python_inspector.capture import CACHED, KEY, Block, Call, Named, RecordError, Twin

CONV_STATE = ("batch", "channel", "state")
SSM_STATE = ("batch", "head", "head_dim", "state")

_CACHE_LAYERS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
)


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
    if type(layer) not in _CACHE_LAYERS:
        raise RecordError(f"[{path}] unsupported cache layer {type(layer).__name__}")
    if getattr(layer, "record_past", False):
        raise RecordError(f"[{path}] unsupported cache: its layers record their past")
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
    return _keys_and_values(index, twin(cache))


def _keys_and_values(index: int, cache: Any) -> dict[str, Named]:
    layer = cache.layers[index]
    return {"keys_after": (layer.keys, CACHED), "values_after": (layer.values, CACHED)}


def kv_cache(call: Call) -> Block:
    """Cache.update(key_states, value_states, layer_idx) -> keys and values for attention."""
    cache, index = call["self"], call["layer_idx"]

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        returned: dict[str, Named] = {"keys": (result[0], CACHED), "values": (result[1], CACHED)}
        return returned | cache_after(cache, index, twin)

    state = cache_state(cache, index, call.path)
    new: dict[str, Named] = {"k": (call["key_states"], KEY), "v": (call["value_states"], KEY)}
    params = cache_params(cache, index, call.path)
    after = partial(_keys_and_values, index)
    return Block("kv_cache", new | state, outputs, params, state=after)


def untapped_kv_cache(call: Call) -> Block | None:
    """kv_cache where nothing is known of the architecture: only a cache that is known."""
    try:
        return kv_cache(call) if call["key_states"].ndim == 4 else None
    except RecordError as error:
        call.recorder.warn(f"{error}; its updates are not recorded")
        return None


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
