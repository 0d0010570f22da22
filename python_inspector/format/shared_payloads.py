"""Tensors of a recording that have the bytes of another one of its table: `payload_of` names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError
from .recording import ITEM_SIZES


def require_shared(recording: Path, table: Mapping[str, Any]) -> None:
    """FormatError where an entry of the table in the file `recording` does not fit the one whose
    payload it has: whoever reads it would take other numbers for it."""
    for key, entry in table.items():
        if "payload_of" in entry and (misfit := _misfit(entry, table)):
            raise FormatError(f"{recording}: tensors.{key}.{misfit}")


def _misfit(entry: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    """The field that keeps an entry from having the bytes of another; "" where nothing does."""
    key = entry["payload_of"]
    owner = table.get(key) if isinstance(key, str) else None
    if owner is None:
        return f"payload_of: tensor {key} is not in the table"
    if "generator" in owner or "payload_of" in owner:
        return f"payload_of: {key} has no payload of its own"
    if owner.get("file") != entry.get("file"):
        return f"payload_of: {key} is in {owner.get('file')}, not in {entry.get('file')}"
    for field in ("dtype", "shape", "sha256"):
        same = _bytes(owner) == _bytes(entry) if field == "shape" else owner[field] == entry[field]
        if not same:
            return f"{field}: {entry[field]}, that of {key} with its payload is {owner[field]}"
    return ""


def _bytes(entry: Mapping[str, Any]) -> int:
    return math.prod(entry["shape"]) * ITEM_SIZES[entry["dtype"]]
