"""Recordings that say what the code did not compute: as a verdict has it, wrong kernels.

An edit changes one number or word in the params of every block of a kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

_OTHER = {"silu": "gelu", "gelu": "silu", "gelu_pytorch_tanh": "silu", "tanh": "silu",
          "half": "interleaved", "interleaved": "half"}  # fmt: skip

_EDITS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("rms_norm", "eps", lambda eps: eps * 1e3),
    ("rms_norm", "weight_offset", lambda offset: 1 - offset),
    ("glu_activation", "function", lambda function: _OTHER[function]),
    ("rotary", "style", lambda style: _OTHER[style]),
)


def edits_of(recording: str) -> Iterator[tuple[str, str]]:
    """What each edit changes, and the text of the recording with it."""
    for kind, param, change in _EDITS:
        document = json.loads(recording)
        edited = [
            checkpoint["params"]
            for checkpoint in document["checkpoints"]
            if checkpoint["block"] == kind and param in checkpoint["params"]
        ]
        for params in edited:
            params[param] = change(params[param])
        if edited:
            yield f"{kind}.{param}", json.dumps(document)
