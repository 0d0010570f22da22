"""The published sizes of the models that benchmarks use; harness/bench/shapes.cpp has the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of one decoder layer and its embedding, batch 1."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gemma: bool = False  # sandwich norms, 1 + weight, tanh-gelu, scaled embedding
    attention_softcap: float | None = None
    final_softcap: float | None = None
    window: int | None = None  # of the layers that slide


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("llama3-8b", 4096, 32, 8, 128, 14336, 128256),
        Shape("llama3.2-1b", 2048, 32, 8, 64, 8192, 128256),
        Shape("gemma2-2b", 2304, 8, 4, 256, 9216, 256000, True, 50.0, 30.0, 4096),
        Shape("tiny", 64, 4, 2, 16, 128, 512),
        Shape("tiny-gemma2", 64, 4, 2, 16, 128, 512, True, 50.0, 30.0, 8),
    )
}


@dataclass(frozen=True)
class Sizes:
    """What one measurement is about: new tokens per call, keys in all, dtype and device by name."""

    tokens: int
    context: int
    dtype: str
    device: str
