"""Changes of a parsed recording.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def at(*path: str | int) -> Callable[[Json], Any]:
    """A getter of the container at `path`."""

    def get(document: Json) -> Any:
        for step in path:
            document = document[step]  # type: ignore[index]
        return document

    return get


def put(*path: str | int, value: Any) -> Callable[[Json], None]:
    """Sets the entry at `path`."""
    return lambda document: at(*path[:-1])(document).__setitem__(path[-1], value)


def drop(*path: str | int) -> Callable[[Json], None]:
    """Removes the entry at `path`."""
    return lambda document: at(*path[:-1])(document).__delitem__(path[-1])
