"""JSON-lines files: the one way in which reports are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def json_lines(path: Path, torn_end: bool = False) -> Iterator[tuple[str, Line]]:
    """Each line's place, "FILE:NUMBER", and object. ValueError names it where it is not one.

    torn_end: a last line without a line feed is what a killed writer left, and is passed over.
    """
    if path.is_char_device():  # some never end
        raise ValueError(f"{path}: is a device; name a file")
    content = path.read_bytes()
    if torn_end:  # before it is decoded: the end may be half a character
        content = content[: content.rfind(b"\n") + 1]
    try:
        texts = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from error
    if not texts[-1]:
        texts.pop()
    if not texts:
        raise ValueError(f"{path}: is empty")
    for number, text in enumerate(texts, 1):
        place = f"{path}:{number}"
        try:
            line = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{place}: not JSON: {error}") from error
        if not isinstance(line, dict):
            raise ValueError(f"{place}: is no object")
        yield place, line
