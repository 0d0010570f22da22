"""ONNX Runtime on the CPU, of the graph that onnx_graph.py writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from ..steps import Step
from ..weights import config_of, weights_of
from .engine import Engine, head_dim, require, rope_theta, windows
from .onnx_graph import Graph


def engine(recording: Path | str) -> Engine:
    hf, weights = config_of(recording), weights_of(recording)
    require(hf["model_type"] in ("llama", "mistral", "qwen2", "gemma2"), hf["model_type"])
    require(weights["model.norm.weight"].dtype == torch.float32, "16 bits on the CPU")
    model = Graph(hf, weights).model()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    size, window = head_dim(hf), next(filter(None, windows(hf)), 1 << 30)
    frequencies = rope_theta(hf) ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    angles = np.outer(np.arange(hf["max_position_embeddings"]), frequencies)
    given = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    names = [output.name for output in session.get_outputs()]
    kept: dict[str, Any] = {}

    def run(ids: Any, begin: int) -> dict[str, Any]:
        if begin == 0:
            empty = np.zeros((ids.shape[0], hf["num_key_value_heads"], 0, size), np.float32)
            kept.update(
                {f"past_{x}{i}": empty for i in range(hf["num_hidden_layers"]) for x in "kv"}
            )
        at, keys = np.arange(begin, begin + ids.shape[1])[:, None], np.arange(begin + ids.shape[1])
        masks = {"mask": keys <= at, "mask_window": (keys <= at) & (keys > at - window)}
        positions = np.broadcast_to(at[:, 0], ids.shape).astype(np.int64)
        feeds = {"ids": np.asarray(ids), "positions": positions, **masks, **given, **kept}
        used = {each.name for each in session.get_inputs()}
        made = dict(zip(names, session.run(names, {n: feeds[n] for n in used}), strict=True))
        kept.update({n.replace("present", "past"): made.pop(n) for n in names if n[:4] == "pres"})
        return made

    def cached(ids: Any, step: Step) -> Any:
        require(not any(step.padding), "padding")
        return run(ids, step.position)

    return Engine("onnxruntime", {"prefill": lambda ids: run(ids, 0), "cache": cached})
