"""Records model runs of HuggingFace transformers, block by block, with a float64 oracle."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import aliases
from .version import __version__ as __version__

if TYPE_CHECKING:
    from . import quantised as quantised
    from .api import strategies as strategies
    from .api.attribution import attribute
    from .api.checking import check
    from .api.drawing import draw
    from .api.invariance import invariant
    from .api.prepared import Prepared, prepare
    from .api.problem import problem
    from .api.sealed import Sealed
    from .api.verdict import Verdict, WrongError
    from .api.verdict_frame import verdicts_frame
    from .api.verification import Call, Unsupported, verify
    from .engines.capture import capture
    from .engines.model import verify_model
    from .engines.module import verify_module
    from .errors import (
        FormatError,
        HarnessError,
        RecordError,
        RecordWarning,
        UsageError,
    )
    from .models import tiny as tiny
    from .recorder.session import note, record, save
    from .recorder.where import Where
    from .taps.options import Proof, What
    from .trace.decomposing import register_decomposition

__all__ = [
    "Call",
    "FormatError",
    "HarnessError",
    "Prepared",
    "Proof",
    "RecordError",
    "RecordWarning",
    "Sealed",
    "Unsupported",
    "UsageError",
    "Verdict",
    "What",
    "Where",
    "WrongError",
    "attribute",
    "capture",
    "check",
    "draw",
    "invariant",
    "note",
    "prepare",
    "problem",
    "record",
    "register_decomposition",
    "save",
    "verdicts_frame",
    "verify",
    "verify_model",
    "verify_module",
]

_HOMES = {
    "Call": "api.verification",
    "FormatError": "errors",
    "HarnessError": "errors",
    "Prepared": "api.prepared",
    "Proof": "taps.options",
    "RecordError": "errors",
    "RecordWarning": "errors",
    "Sealed": "api.sealed",
    "Unsupported": "api.verification",
    "UsageError": "errors",
    "Verdict": "api.verdict",
    "What": "taps.options",
    "Where": "recorder.where",
    "WrongError": "api.verdict",
    "attribute": "api.attribution",
    "capture": "engines.capture",
    "check": "api.checking",
    "draw": "api.drawing",
    "invariant": "api.invariance",
    "note": "recorder.session",
    "prepare": "api.prepared",
    "problem": "api.problem",
    "record": "recorder.session",
    "register_decomposition": "trace.decomposing",
    "save": "recorder.session",
    "verdicts_frame": "api.verdict_frame",
    "verify": "api.verification",
    "verify_model": "engines.model",
    "verify_module": "engines.module",
}

aliases.join()

_LIGHT = {
    "errors",
    "api.verification",
    "api.verdict",
    "api.verdict_frame",
    "api.checking",
    "api.prepared",
    "api.drawing",
    "api.invariance",
    "api.problem",
    "api.sealed",
    "trace.decomposing",
}
"""What can be imported without torch and transformers, and says itself what it needs."""
_MODULES = {"quantised": "quantised", "strategies": "api.strategies", "tiny": "models.tiny"}
"""Modules that are reached from here, wherever they are."""


def __getattr__(name: str) -> Any:
    """Imports on first use: the command line answers --help without torch and transformers."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    if home not in _LIGHT and not home.startswith("engines."):
        importlib.import_module(f"{__name__}.compatibility")  # first: a version that is too old
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
