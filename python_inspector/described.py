"""The architectures that taps describe, by config.model_type: a list that needs no torch."""

from __future__ import annotations

LIKE_LLAMA = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Those whose table is LLaMA's (taps/llama.py), with the prefix of their classes."""

DESCRIBED = (*LIKE_LLAMA, "gemma2", "zamba2", "blocks", "components")
"""What `taps.ARCHITECTURES` has a table for."""
