"""MLX: the models of mlx-lm, on whatever device MLX has."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.models.cache import make_prompt_cache

from ..steps import Step
from ..weights import config_of, weights_of
from .engine import Engine, require, rope_theta

MODULES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "gemma2": "gemma2"}
"""As its loader chooses them."""


def given(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:  # which NumPy has not
        return mx.array(tensor.float().numpy()).astype(mx.bfloat16)
    return mx.array(tensor.numpy())


def model(recording: Path | str) -> Any:
    hf = config_of(recording)
    kind = hf["model_type"]
    require(kind in MODULES, f"no model for {kind}")
    # Files of the hub have rope_theta at the top, and no rope_scaling where there is none.
    described = {**hf, "rope_theta": rope_theta(hf), "rope_scaling": None}
    module = importlib.import_module(f"mlx_lm.models.{MODULES[kind]}")
    built = module.Model(module.ModelArgs.from_dict(described))
    weights = {name: given(weight) for name, weight in weights_of(recording).items()}
    if kind == "gemma2":
        weights.pop("lm_head.weight", None)
    if hasattr(built, "sanitize"):
        weights = built.sanitize(weights)
    built.load_weights(list(weights.items()))
    return built


class Watched:
    """Wraps a module, and keeps what it gave, or was given."""

    def __init__(self, module: Any, taken: dict[str, Any], gave: str, had: str = "") -> None:
        self._module, self._taken, self._gave, self._had = module, taken, gave, had

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __call__(self, x: Any, *arguments: Any, **named: Any) -> Any:
        out = self._module(x, *arguments, **named)
        self._taken[self._gave] = _numpy(out)
        if self._had:
            self._taken[self._had] = _numpy(x)
        return out


def _numpy(x: Any) -> Any:
    return np.array(x.astype(mx.float32))


def engine(recording: Path | str, built: Any = None) -> Engine:
    """`built`: instead of `model(recording)`, one that was changed."""
    built = built or model(recording)
    taken: dict[str, Any] = {}
    inner = built.model
    for i, layer in enumerate(inner.layers):
        had = "model.embed_tokens" if i == 0 else ""
        inner.layers[i] = Watched(layer, taken, f"model.layers.{i}", had)
    inner.norm = Watched(inner.norm, taken, "model.norm")

    def run(ids: Any, cache: Any) -> dict[str, Any]:
        taken.clear()
        logits = built(mx.array(np.asarray(ids)), cache=cache)
        return {"logits": _numpy(logits), **taken}

    def cached(ids: Any, cache: Any) -> Any:
        cache = cache or make_prompt_cache(built)
        return run(ids, cache), cache

    def stepwise(ids: Any, step: Step) -> Any:
        if step.first:
            require(not any(step.padding), "padding")
            kept["cache"] = None
        made, kept["cache"] = cached(ids, kept["cache"])
        return made

    kept: dict[str, Any] = {}
    return Engine("mlx-lm", {"prefill": lambda ids: run(ids, None), "cache": stepwise})
