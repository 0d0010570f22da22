"""JSON-lines files: the one way in which reports are read."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

Line = dict[str, Any]


def opened(path: Path) -> BinaryIO:
    """To read the file's bytes, decompressed where its name ends in .xz."""
    return cast(BinaryIO, lzma.open(path)) if path.suffix == ".xz" else path.open("rb")


def json_lines(path: Path, torn_end: bool = False) -> Iterator[tuple[str, Line]]:
    """Each line's place, "FILE:NUMBER", and object. ValueError names it where it is not one.

    torn_end: a last line without a line feed is what a killed writer left, and is passed over.
    """
    if path.is_char_device():  # some never end
        raise ValueError(f"{path}: is a device; name a file")
    number = 0
    with opened(path) as file:
        try:
            for number, text in enumerate(file, 1):
                if torn_end and not text.endswith(b"\n"):  # may end in half a character
                    break
                yield f"{path}:{number}", _object(f"{path}:{number}", text)
        except (lzma.LZMAError, EOFError) as error:
            raise ValueError(f"{path}: is damaged after line {number}: {error}") from error
    if not number:
        raise ValueError(f"{path}: is empty")


def _object(place: str, text: bytes) -> Line:
    try:
        line = json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: not UTF-8 text: {error}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON: {error}") from error
    if not isinstance(line, dict):
        raise ValueError(f"{place}: is no object")
    return line
