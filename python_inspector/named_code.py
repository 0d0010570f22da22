"""What a command line names: FILE.py:NAME or package.module:NAME."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from .errors import UsageError


def load(named: str) -> Any:
    """The object; a file is run as a script's imports would be, with its folder on sys.path.

    Raises UsageError where the words name nothing, and whatever the code raises.
    """
    place, _, name = named.rpartition(":")
    if not place or not name:
        raise UsageError(f"{named}: expected FILE.py:NAME or package.module:NAME")
    found: Any = _of_file(Path(place)) if place.endswith(".py") else _of_module(named, place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{named}: {place} has no {name}")
        found = getattr(found, part)
    return found


def _of_file(file: Path) -> Any:
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file")
    name = f"named_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # of a .py there is
    if (known := sys.modules.get(name)) and known.__file__ == str(file):
        return known
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    spec.loader.exec_module(module)
    return module


def _of_module(named: str, place: str) -> Any:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place + ".").startswith(error.name + "."):
            raise UsageError(f"{named}: there is no module {error.name}") from None
        raise
