"""Keras Hub on JAX: what its from_preset() makes of HuggingFace's files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import keras_hub
import numpy as np

from ..steps import RecordedRun, Step
from ..weights import save_model
from .engine import Engine, head_dim, require

CLASSES = {
    "llama": "Llama3CausalLM", "mistral": "MistralCausalLM", "qwen2": "QwenCausalLM",
    "gemma2": "GemmaCausalLM",
}  # fmt: skip
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def model(recording: Path | str) -> Any:
    run = RecordedRun(recording)
    kind = run.config["model_type"]
    require(kind in CLASSES, f"no converter for {kind}")
    jax.config.update("jax_default_matmul_precision", "highest")
    with tempfile.TemporaryDirectory(prefix="plumbline-keras-") as name:
        folder = save_model(recording, Path(name))
        backbone = keras_hub.models.Backbone.from_preset(str(folder), dtype=DTYPES[run.dtype])
    return getattr(keras_hub.models, CLASSES[kind])(backbone, preprocessor=None)


def _numpy(x: Any) -> Any:
    return np.asarray(keras.ops.cast(x, "float32"))


class Watched:
    """Wraps a layer of the backbone, and keeps what it gave."""

    def __init__(self, layer: Any, name: str, taken: dict[str, Any]) -> None:
        self._layer, self._name, self._taken = layer, name, taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        out = self._layer(*arguments, **named)
        self._taken[self._name] = _numpy(out[0] if isinstance(out, tuple) else out)
        return out


def engine(recording: Path | str, built: Any = None) -> Engine:
    """`built`: instead of `model(recording)`, one that was changed."""
    task = built or model(recording)
    config = RecordedRun(recording).config
    backbone = task.backbone
    taken: dict[str, Any] = {}

    def cache_of(rows: int, length: int) -> Any:
        sizes = (rows, config["num_hidden_layers"], 2, length)
        shape = (*sizes, config["num_key_value_heads"], head_dim(config))
        return keras.ops.zeros(shape, dtype=task.compute_dtype)

    def run(ids: Any, cache: Any, position: int) -> Any:
        taken.clear()
        layers = backbone.transformer_layers
        watched = [Watched(layer, f"model.layers.{i}", taken) for i, layer in enumerate(layers)]
        object.__setattr__(backbone, "transformer_layers", watched)
        try:
            logits, hidden, cache = task.call_with_cache(np.asarray(ids, np.int32), cache, position)
        finally:
            object.__setattr__(backbone, "transformer_layers", layers)
        return {"logits": _numpy(logits), "model.norm": _numpy(hidden), **taken}, cache

    def prefill(ids: Any) -> Any:
        given = {
            "token_ids": np.asarray(ids, np.int32),
            "padding_mask": np.ones_like(ids, np.int32),
        }
        return _numpy(task(given))

    kept: dict[str, Any] = {}

    def cached(ids: Any, step: Step) -> Any:
        if step.first:
            require(not any(step.padding), "padding")
            kept["cache"] = cache_of(ids.shape[0], step.total)
        made, kept["cache"] = run(ids, kept["cache"], step.position)
        return made

    return Engine("keras-hub", {"prefill": prefill, "cache": cached})
