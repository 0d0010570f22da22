"""Tensors of a recording that have the bytes of another one of its table: `payload_of` names it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError
from .recording import ITEM_SIZES


def shared_findings(
    where: str, entry: Mapping[str, Any], table: Mapping[str, Any]
) -> Iterator[str]:
    """Of an entry with `payload_of`: that one must have a payload of its own, and its bytes."""
    key = entry["payload_of"]
    owner = table.get(key) if isinstance(key, str) else None
    if owner is None:
        yield f"{where}.payload_of: tensor {key} is not in the table"
    elif "generator" in owner:
        yield f"{where}.payload_of: {key} is generated and has no payload"
    elif "payload_of" in owner:
        yield f"{where}.payload_of: {key} itself has the payload of {owner['payload_of']}"
    elif owner.get("file") != entry.get("file"):
        yield f"{where}.payload_of: {key} is in {owner.get('file')}, not in {entry.get('file')}"
    elif owner["dtype"] != entry["dtype"]:
        yield f"{where}.dtype: {entry['dtype']}, that of {key} with its payload is {owner['dtype']}"
    elif _bytes(owner) != _bytes(entry):
        yield (
            f"{where}.shape: {entry['shape']} of {_bytes(entry)} bytes, that of {key} with its "
            f"payload is {owner['shape']} of {_bytes(owner)}"
        )
    elif owner["sha256"] != entry["sha256"]:
        yield (
            f"{where}.sha256: {entry['sha256']}, that of {key} with its payload is "
            f"{owner['sha256']}"
        )


def require_shared(recording: Path, table: Mapping[str, Any]) -> None:
    """FormatError where an entry of the table in the file `recording` does not fit the one whose
    payload it has: whoever reads it would take other numbers for it."""
    for key, entry in table.items():
        if "payload_of" in entry:
            for finding in shared_findings(f"tensors.{key}", entry, table):
                raise FormatError(f"{recording}: {finding}")


def _bytes(entry: Mapping[str, Any]) -> int:
    return math.prod(entry["shape"]) * ITEM_SIZES[entry["dtype"]]
