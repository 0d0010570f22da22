"""The text of recording.json."""

from __future__ import annotations

import json
from typing import Any

from .recording import plain


def recording_text(recording: dict[str, Any]) -> str:
    """The recording as JSON: one line per field, table entry, network entry and checkpoint."""
    lines = [f"{json.dumps(key)}: {_spread(plain(value, key))}" for key, value in recording.items()]
    return "{" + ",\n ".join(lines) + "}\n"


def _spread(value: Any) -> str:
    """A top-level value; containers get one line per entry."""
    if isinstance(value, dict) and value:
        entries = [f"  {json.dumps(key)}: {_line(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(entries) + "}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {_line(item)}" for item in value) + "]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
