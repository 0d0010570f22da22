"""tinygrad: the Transformer of tinygrad.llm, from a GGUF file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HALF", "0")  # else every weight becomes float16

import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad.llm.model import Transformer

from ..steps import Step
from ..weights import config_of
from . import gguf_file
from .engine import Engine, require


def model(recording: Path | str) -> tuple[Any, tuple[str, ...]]:
    kind = config_of(recording)["model_type"]
    require(kind in ("llama", "mistral", "qwen2"), f"no model for {kind}")
    with tempfile.TemporaryDirectory(prefix="plumbline-gguf-") as folder:
        path = Path(folder) / "model.gguf"
        notes = gguf_file.write(recording, path)
        built, _ = Transformer.from_gguf(path, realize=True)
    return built, notes


def engine(recording: Path | str) -> Engine:
    built, notes = model(recording)

    def run(ids: Any, position: int) -> dict[str, Any]:
        """As its forward(), which gives a token and not logits."""
        taken: dict[str, Any] = {}
        x = built.token_embd(Tensor(np.asarray(ids, np.int32))).float()
        taken["model.embed_tokens"] = _numpy(x)
        for i, block in enumerate(built.blk):
            x = block(x, position).realize()
            taken[f"model.layers.{i}"] = _numpy(x)
        x = built.output_norm(x)
        return {"logits": _numpy(built.output(x)), "model.norm": _numpy(x), **taken}

    def cached(ids: Any, step: Step) -> Any:
        return run(ids, step.position)

    told = tuple(f"not in the file: {each}" for each in notes)
    ways: dict[str, Any] = {"prefill": lambda ids: run(ids, 0), "cache": cached}
    return Engine("tinygrad", ways, True, told)


def _numpy(x: Any) -> Any:
    return x.cast(dtypes.float32).numpy()
