"""The architectures that taps describe, by config.model_type: a list that needs no torch."""

from __future__ import annotations

DESCRIBED = ("llama", "mistral", "qwen2", "gemma2", "zamba2", "blocks", "components")
"""What `taps.ARCHITECTURES` has a table for."""
