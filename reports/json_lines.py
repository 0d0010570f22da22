"""JSON-lines files: the one way in which reports are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def json_lines(path: Path, *, torn_end: bool = False) -> Iterator[tuple[str, Line]]:
    """Each line's place, "FILE:NUMBER", and object. ValueError names it where it is not one.

    torn_end: a last line without line feed that is no JSON is left out, as its writer was killed.
    """
    try:
        texts = path.read_bytes().decode(errors="surrogateescape" if torn_end else "strict")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from error
    if not texts:
        raise ValueError(f"{path}: is empty")
    # Not splitlines(): JSON strings may hold U+2028 and other characters that it takes for ends.
    *complete, rest = texts.split("\n")
    lines = [*complete, rest] if rest else complete
    for number, text in enumerate(lines, 1):
        place = f"{path}:{number}"
        try:
            text.encode()
            line = json.loads(text)
        except UnicodeEncodeError as error:
            if torn_end and rest and number == len(lines):
                return
            raise ValueError(f"{place}: not UTF-8 text") from error
        except (json.JSONDecodeError, RecursionError) as error:
            if torn_end and rest and number == len(lines):
                return
            raise ValueError(f"{place}: not JSON: {error}") from error
        if not isinstance(line, dict):
            raise ValueError(f"{place}: is no object")
        yield place, line
