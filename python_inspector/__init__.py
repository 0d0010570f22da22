"""Records model runs of HuggingFace transformers, block by block, with a float64 oracle."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from python_inspector.version import __version__ as __version__

if TYPE_CHECKING:
    from python_inspector.engines.capture import capture
    from python_inspector.engines.model import verify_model
    from python_inspector.engines.module import verify_module
    from python_inspector.errors import RecordError, RecordWarning
    from python_inspector.models import tiny as tiny
    from python_inspector.recorder.session import note, record, save
    from python_inspector.verification import Call, Unsupported, Verdict, verify

__all__ = [
    "Call",
    "RecordError",
    "RecordWarning",
    "Unsupported",
    "Verdict",
    "capture",
    "note",
    "record",
    "save",
    "verify",
    "verify_model",
    "verify_module",
]

_HOMES = {
    "Call": "verification",
    "RecordError": "errors",
    "RecordWarning": "errors",
    "Unsupported": "verification",
    "Verdict": "verification",
    "capture": "engines.capture",
    "note": "recorder.session",
    "record": "recorder.session",
    "save": "recorder.session",
    "verify": "verification",
    "verify_model": "engines.model",
    "verify_module": "engines.module",
}


_MODULES = {"tiny": "models.tiny"}
"""Modules that are reached from here, wherever they lie."""


def __getattr__(name: str) -> Any:
    """Imports on first use: the command line answers --help without torch and transformers."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _HOMES[name].startswith(("verification", "engines")):  # which work without transformers
        importlib.import_module(f"{__name__}.compatibility")  # first: a version that is too old
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
