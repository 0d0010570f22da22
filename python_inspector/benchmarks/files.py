"""Files of problems and candidates: read, placed for others, imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..named_code import load

JSON = Mapping[str, Any]


def existing(file: Path) -> Path:
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file")
    return file


def objects(file: Path) -> list[JSON]:
    """Of a file of JSON, or of one with an object in each line; one at least."""
    text = existing(file).read_text()
    try:
        try:
            made = json.loads(text)
        except ValueError:
            made = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from None
    found = made if isinstance(made, list) else [made]
    if not found or not all(isinstance(it, dict) for it in found):
        raise UsageError(f"{file}: expected an object of JSON, or one in each line")
    return found


def written(folder: Path, name: str, text: str) -> Path:
    """A new file; UsageError where its name leads out of the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"the source {name} is outside of {folder.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@contextmanager
def fields(what: str) -> Iterator[None]:
    """UsageError where what is read inside lacks a field, or has one of another type."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"no {what}: {error!r}") from None


def loaded(named: str) -> Any:
    """Of a problem's file; UsageError where it cannot be imported."""
    try:
        return load(named)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{named}: {type(error).__name__}: {error}") from error


@contextmanager
def apart(folder: Path) -> Iterator[None]:
    """Modules of a folder are imported as their files are now, and forgotten at the end: no process
    of a candidate searches that folder, no other problem finds them."""
    path, stems = list(sys.path), {file.stem for file in folder.glob("*.py")}
    own = stems | {f"named_{stem}" for stem in stems}
    hidden = {name: sys.modules.pop(name) for name in own & set(sys.modules)}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        for name in own & set(sys.modules):
            del sys.modules[name]
        sys.modules.update(hidden)
