"""Objects of transformers, recognised without importing it: without that import there are none. So
check() needs torch alone, and does not wait four seconds for transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

CACHE_NAMES = ("past_key_values", "cache", "cache_params", "state")
"""How models call what they hand on from call to call: `past_key_values` or, of Mamba,
`cache_params` before 5.24, `cache` since; RWKV `state`."""


def is_cache(value: Any) -> bool:
    return _is(value, "cache_utils", "Cache")


def is_static_cache(value: Any) -> bool:
    return _is(value, "cache_utils", "StaticCache")


def is_cache_layer(value: Any) -> bool:
    """LinearAttentionCacheLayerMixin: 5.6 and newer."""
    return _is(value, "cache_utils", "CacheLayerMixin", "LinearAttentionCacheLayerMixin")


def is_model_output(value: Any) -> bool:
    return _is(value, "utils.generic", "ModelOutput")


def is_config(value: Any) -> bool:
    """Spelled "Pretrained" before 5.0."""
    return _is(value, "configuration_utils", "PreTrainedConfig", "PretrainedConfig")


def _is(value: Any, module: str, *names: str) -> bool:
    home = vars(sys.modules.get(f"transformers.{module}", object)).get
    return isinstance(value, tuple(kind for name in names if (kind := home(name))))


def cache_in(values: Any) -> Any:
    """Of the arguments of a call, or of a model's output, what it keeps for the next call: a Cache
    under whatever name, or else what has the name of one; None where there is neither."""
    named: Mapping[str, Any] = values if isinstance(values, Mapping) else {}
    for value in values if isinstance(values, tuple) else named.values():
        if is_cache(value):
            return value
    return next((named[name] for name in CACHE_NAMES if named.get(name) is not None), None)


@contextmanager
def collectors_off() -> Iterator[None]:
    """transformers collects no outputs of modules that run meanwhile. Before it had a variable for
    that, it wrapped forward where it was asked."""
    collecting = sys.modules.get("transformers.utils.output_capturing")
    if collecting is None:
        yield
        return
    token = collecting._active_collector.set(None)
    try:
        yield
    finally:
        collecting._active_collector.reset(token)
