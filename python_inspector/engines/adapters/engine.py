"""What an adapter gives: the ways in which an engine runs a model, for verify_model()."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...api.verification import Unsupported

LAYERS = ("model.embed_tokens", "model.layers.{}", "model.norm")
"""The recorded names of embedding, layers and final norm, in the order of every adapter."""


@dataclass(frozen=True)
class Engine:
    """A model as one engine runs it."""

    package: str
    ways: Mapping[str, Callable[..., Any]]
    """By name, "prefill" and "cache": functions for verify_model()."""
    rows: bool = False
    """It takes one sequence at a time."""
    notes: tuple[str, ...] = field(default=())
    """What the adapter had to do that a user of the engine would not expect."""

    @property
    def version(self) -> str:
        return f"{self.package} {importlib.metadata.version(self.package)}"


def require(holds: bool, reason: str) -> None:
    """Unsupported, with the reason, unless it holds."""
    if not holds:
        raise Unsupported(reason)


def rope_theta(config: Mapping[str, Any]) -> float:
    """Of a configuration as transformers 4 or 5 writes it; scaled frequencies are Unsupported."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", "default")
    require(kind == "default", f"rotary frequencies of the kind {kind}")
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)


def head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def windows(config: Mapping[str, Any]) -> list[int | None]:
    """The window of every layer, None where it sees everything."""
    kinds = config.get("layer_types")
    size = config.get("sliding_window")
    if kinds is None:
        always = config["model_type"] == "mistral"
        kinds = ["sliding_attention" if always else "full_attention"] * config["num_hidden_layers"]
    return [size if kind == "sliding_attention" and size else None for kind in kinds]


def in_pieces(run: Callable[[int, int], Mapping[str, Any]], step: Any, size: int) -> dict[str, Any]:
    """`run(begin, end)` for at most `size` of the step's tokens at a time; outputs put together."""
    import torch

    cuts = range(0, step.tokens, size)
    parts = [dict(run(begin, min(begin + size, step.tokens))) for begin in cuts]
    return {name: torch.cat([each[name] for each in parts], 1) for name in parts[0]}
