"""The architectures that taps describe, by config.model_type: a list that needs no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DECODERS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data/decoders.json").read_text()
)
"""Decoders of equal layers, each with where it differs from LLaMA: what `harness list --models`
prints, from blocks/models/dialects.cpp."""

MODEL_TYPES = (*DECODERS, "zamba2")
"""What the harness runs."""
