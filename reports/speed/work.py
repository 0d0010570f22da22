"""What is measured of a whole model, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """What is measured: a prompt's length, single tokens behind it, and on what."""

    tokens: int = 128
    steps: int = 32
    device: str = "cpu"
    dtype: str = "bf16"
    threads: int = 0


@dataclass(frozen=True)
class Speed:
    """Seconds of the prompt, and of a single token."""

    prefill: float
    decode: float
