"""The versions of torch and transformers that the package is proven with."""

from __future__ import annotations

import functools
import re
import warnings
from importlib import metadata

from . import needs

PROVEN = {"torch": ((2, 4), (2, 13)), "transformers": ((4, 57), (5, 24))}
"""The oldest and newest version that ci/versions proves; pyproject.toml has the oldest, too."""


class VersionError(ImportError):
    """An installed version is too old; the text says which is needed."""


class VersionWarning(UserWarning):
    """An installed version is newer than what was proven."""


@functools.cache
def require(what: str, *packages: str) -> None:
    """MissingExtraError for one that is not installed, VersionError for a version that is too old,
    a warning for one that is newer than proven."""
    needs.require(what, *packages)
    for package, (oldest, newest) in ((it, PROVEN[it]) for it in packages):
        text = metadata.version(package)
        version = numbers(text)
        if version < oldest:
            raise VersionError(
                f"{what} needs {package} {dotted(oldest)} or newer, this is {text}: "
                f"pip install '{package}>={dotted(oldest)}'"
            )
        if version > newest:
            warnings.warn(
                f"{what} is proven with {package} {dotted(oldest)} to {dotted(newest)}, this is "
                f"{text}: have `harness` verify what you record before you rely on it",
                VersionWarning,
                stacklevel=3,
            )


def newer_than_proven() -> str:
    """What a message adds where transformers is newer than what ci/versions proves."""
    newest, text = PROVEN["transformers"][1], metadata.version("transformers")
    if numbers(text) <= newest:
        return ""
    return f"; this is transformers {text}, recording is proven up to {dotted(newest)}"


def numbers(version: str) -> tuple[int, int]:
    """Major and minor."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
