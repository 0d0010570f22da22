"""Reads JSON written by others: what a lenient parser would guess about is an error here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..errors import FormatError

MAX_DEPTH = 64


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; no repeated key, no bare NaN, no number out of range."""
    if not path.is_file():
        raise FormatError(f"{path} is {'no regular file' if path.exists() else 'missing'}")
    data = path.read_bytes()
    try:
        if data.startswith(b"\xef\xbb\xbf"):
            raise ValueError("it begins with a byte order mark")
        value = json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_float,
            parse_int=_int,
        )
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not valid JSON: {error}") from None
    if _depth(value) > MAX_DEPTH:
        raise FormatError(f"{path}: nested {_depth(value)} deep, at most {MAX_DEPTH} is read")
    if not isinstance(value, dict):
        raise FormatError(f"{path}: is a JSON {type(value).__name__}, expected an object")
    return value


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            item
            for parent in level
            if isinstance(parent, (dict, list))
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} appears twice in one object")
        result[key] = value
    return result


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"bare {text}; non-finite numbers are the strings inf, -inf and nan")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text} is out of range")
    return value


def _int(text: str) -> int:
    value = int(text) if len(text) < 20 else 2**64
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"number {text[:40]} is out of range")
    return value
