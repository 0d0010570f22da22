"""Records model runs of HuggingFace transformers, block by block, with a float64 oracle."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from python_inspector.capture import RecordError
    from python_inspector.recorder import RecordWarning
    from python_inspector.session import note, record, save
    from python_inspector.verification import Call, Unsupported, Verdict, verify

__all__ = [
    "Call",
    "RecordError",
    "RecordWarning",
    "Unsupported",
    "Verdict",
    "note",
    "record",
    "save",
    "verify",
]

_HOMES = {
    "Call": "verification",
    "RecordError": "capture",
    "RecordWarning": "recorder",
    "Unsupported": "verification",
    "Verdict": "verification",
    "note": "session",
    "record": "session",
    "save": "session",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    """Imports on first use: the command line answers --help without torch and transformers."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOMES[name] != "verification":  # which works without torch and transformers
        importlib.import_module(f"{__name__}.compatibility")  # first: a version that is too old
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
