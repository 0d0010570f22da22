"""Checks a recording: by the harness's own reader, or by the schema where that is not at hand."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from ..aliases import PACKAGE
from ..errors import FormatError
from ..native import BINARY_VARIABLE, NAME, library_of, opened
from .strict_json import load_json

RECORDING = "recording.json"
SCHEMA = resources.files(PACKAGE) / "data" / "recording.schema.json"


def find_recordings(path: Path) -> list[Path]:
    """The recording at `path`, or all below it; FormatError if there is none."""
    if path.name == RECORDING:
        path = path.parent
    if (path / RECORDING).exists():
        return [path]
    found = sorted(
        p.parent
        for p in path.rglob(RECORDING)
        if not any(part.startswith(".") for part in p.relative_to(path).parts)
    )
    if not found:
        raise FormatError(f"{path}: no {RECORDING} here or below")
    return found


def validate(folder: Path) -> list[str]:
    """What is wrong with the recording in `folder`, a text per finding; empty if it is valid.

    Each names the file, the field and both values. Where unchecked() says something, the schema
    alone is looked at.
    """
    library = library_of()
    if library is not None:
        return opened(library).findings(folder)
    path = folder / RECORDING
    try:
        return [f"{path}: {text}" for text in schema_findings(load_json(path))]
    except FormatError as error:
        return [str(error)]


def unchecked() -> str:
    """What validate() does not look at here, and why; "" where it looks at everything."""
    if library_of() is not None:
        return ""
    return (
        "names, shapes, files, hashes and stated errors are not checked: there is no "
        f"{NAME}, which ci/verify builds and a wheel has; it is looked for next to the harness "
        f"that {BINARY_VARIABLE} names"
    )


def schema_findings(recording: Any) -> Iterator[str]:
    """Deviations from recording.schema.json, the field first."""
    for error in sorted(_validator().iter_errors(recording), key=lambda e: list(map(str, e.path))):
        field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path)
        yield f"{field.removeprefix('.') or 'recording'}: {_short(error.message)}"


@functools.cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    def is_integer(_: Any, value: Any) -> bool:
        return type(value) is int  # JSON Schema takes 2.0 for an integer; the format does not

    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer)
    validator = extend(Draft202012Validator, type_checker=checker)
    return validator(json.loads(SCHEMA.read_text()))


def _short(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[:limit] + " ..."
