"""What engines do otherwise than transformers, and the repair that shows that it is this.

A deviation is confirmed where the engine fails as it is and passes with the repair. `finding` names
its write-up in tests/engines/findings.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from python_inspector.engines.adapters.engine import Engine

from .whole_runs import folder

Repair = Callable[[Path], Engine]


@dataclass(frozen=True)
class Deviation:
    """`runs`: those that show it, and `ways`; others of the engine's are not affected."""

    engine: str
    finding: str
    runs: tuple[str, ...]
    ways: tuple[str, ...]
    repair: Repair | None = None
    dtypes: tuple[str, ...] = ("f32", "bf16")
    instead: str = ""
    """A run of the same weights without what the engine lacks, on which it passes as it is."""


BOTH = ("prefill", "cache")
GEMMA2 = ("gemma2", "gemma2-wide", "gemma2-27b", "gemma2-tiles")


def litgpt_pieces(recording: Path) -> Engine:
    """Prompts token by token: no slot is overwritten that a later token still needs."""
    from python_inspector.engines.adapters import litgpt

    return litgpt.engine(recording, piece=1)


def litgpt_mask(recording: Path) -> Engine:
    """The mask of the cache, True where a key may be seen, as numbers to add."""
    from litgpt.model import CausalSelfAttention

    from python_inspector.engines.adapters import litgpt

    right = CausalSelfAttention.scaled_dot_product_attention

    def attention(self: Any, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
        return right(self, q, k, v, mask)

    engine = litgpt.engine(recording, piece=1)
    return _while_patched(engine, CausalSelfAttention, "scaled_dot_product_attention", attention)


def _while_patched(engine: Engine, owner: Any, name: str, value: Any) -> Engine:
    def patched(way: Callable[..., Any]) -> Callable[..., Any]:
        def run(ids: Any, step: Any) -> Any:
            before = getattr(owner, name)
            setattr(owner, name, value)
            try:
                return way(ids, step)
            finally:
                setattr(owner, name, before)

        return run

    return Engine(engine.package, {"cache": patched(engine.ways["cache"])}, engine.rows)


def torchtune_gemma2(recording: Path) -> Engine:
    """Norms where they belong, the cap behind the head, windows by position."""
    from python_inspector.engines.adapters import torchtune

    model = torchtune.model(recording)
    for layer in model.layers:
        layer.mlp_norm, layer.mlp_scale = layer.mlp_scale, layer.mlp_norm
        if layer.attn.sliding_window_size is not None:
            _window_by_position(layer.attn)
    cap, head = model.norm.logit_capping, model.output
    model.norm.logit_capping = torch.nn.Identity()
    model.output = torch.nn.Sequential(_Call(head), cap)
    return torchtune.engine(recording, model)


class _Call(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def _window_by_position(attention: Any) -> None:
    """Its own mask counts a query's position from the start of the call."""
    window, own = attention.sliding_window_size, attention.forward
    attention.sliding_window_size = None

    def forward(x: Any, y: Any = None, *, mask: Any = None, input_pos: Any = None) -> Any:
        if mask is None:
            mask = torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool).tril()
        at = torch.arange(x.shape[1])[None] if input_pos is None else input_pos
        seen = torch.arange(mask.shape[-1])[None, None] > at[..., None] - window
        return own(x, y, mask=mask & seen, input_pos=input_pos)

    attention.forward = forward


def keras_eps(recording: Path) -> Engine:
    """The norms' epsilon of the configuration."""
    from python_inspector.engines.adapters import keras_hub
    from python_inspector.engines.weights import config_of

    task = keras_hub.model(recording)
    eps = config_of(recording)["rms_norm_eps"]
    norms = [task.backbone.layer_norm]
    for layer in task.backbone.transformer_layers:
        norms += [layer._self_attention_layernorm, layer._feedforward_layernorm]
    for norm in norms:
        norm._epsilon = norm.epsilon = eps
    return keras_hub.engine(recording, task)


def keras_scale(recording: Path) -> Engine:
    """The scale of the 27B model, which the configuration asks for."""
    from python_inspector.engines.adapters import keras_hub

    task = keras_hub.model(recording)
    for layer in task.backbone.transformer_layers:
        layer.attention.query_head_dim_normalize = False
    return keras_hub.engine(recording, task)


def keras_float32_weights(recording: Path) -> Engine:
    """What the converter rounds to float16, as it is in the file."""
    from unittest.mock import patch

    import numpy as np

    from python_inspector.engines.adapters import keras_hub

    with patch.object(np, "float16", np.float32):  # the converter asks for it by this name
        task = keras_hub.model(recording)
    return keras_hub.engine(recording, task)


def gelu_of_float16(recording: Path) -> Engine:
    """Not a repair of llama.cpp, which is compiled: transformers with the same table."""
    from torch.nn.functional import gelu

    from python_inspector.engines.weights import transformers_model

    def table(x: Any) -> Any:
        """From and to float16, as ggml's table of 65,536 values."""
        inside = gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, 0.0, torch.where(x >= 10, x, inside))

    model = transformers_model(recording)
    for layer in model.model.layers:
        layer.mlp.act_fn = _Call(table)

    def run(ids: Any) -> Any:
        with torch.no_grad():
            return model(ids).logits

    return Engine("transformers", {"prefill": run})


DEVIATIONS = (
    Deviation("litgpt", "litgpt-gemma2-cache", GEMMA2, ("cache",), litgpt_mask),
    Deviation("litgpt", "litgpt-window-prefill", ("mistral",), ("cache",), litgpt_pieces),
    Deviation("torchtune", "torchtune-gemma2", GEMMA2, BOTH, torchtune_gemma2),
    Deviation("torchtune", "no-window", ("mistral",), BOTH, instead="mistral-wide"),
    Deviation("mlx_lm", "no-window", ("mistral",), BOTH, instead="mistral-wide"),
    Deviation("mlx_lm", "no-window", ("gemma2",), BOTH, instead="gemma2-wide"),
    Deviation("llama_cpp", "no-window", ("mistral",), BOTH, instead="mistral-wide"),
    Deviation("tinygrad", "no-window", ("mistral",), BOTH, instead="mistral-wide"),
    Deviation(
        "llama_cpp", "llama-cpp-gelu-table", ("gemma2", "gemma2-wide", "gemma2-tiles"), BOTH,
        dtypes=("f32",),
    ),
    Deviation(
        "keras_hub", "keras-hub-llama-eps", ("llama", "llama-tiles"), BOTH, keras_eps, ("f32",)
    ),
    Deviation(
        "keras_hub", "keras-hub-mistral-float16", ("mistral", "mistral-wide"), BOTH,
        keras_float32_weights, ("f32",),
    ),
    Deviation("keras_hub", "keras-hub-gemma2-27b-scale", ("gemma2-27b",), BOTH, keras_scale),
)  # fmt: skip


def of(engine: str, run: str, dtype: str, way: str) -> Deviation | None:
    for each in DEVIATIONS:
        if each.engine == engine and run in each.runs and dtype in each.dtypes and way in each.ways:
            return each
    return None


def run_instead(deviation: Deviation, dtype: str) -> Path:
    return folder(deviation.instead, dtype)
