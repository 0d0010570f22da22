"""What a command needs beyond NumPy, and the extra of the package that brings it."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "plumbline-kernels"
"""The package's name on PyPI; `plumbline` is another project there."""

EXTRAS = {
    "torch": "check",
    "transformers": "record",
    "jsonschema": "record",
    "tqdm": "record",
    "accelerate": "device-map",
    "jinja2": "report",
    "matplotlib": "report",
    "sqlalchemy": "report",
    "psycopg": "postgresql",
    "ray": "sweep",
    "pandas": "frame",
    "mcp": "mcp",
    "expecttest": "opinfo",
    "hypothesis": "hypothesis",
}
"""From a module that is imported to the extra of pyproject.toml that has its package."""


class MissingExtraError(ImportError):
    """A package is not installed; the text says how to get it."""


def require(what: str, *modules: str) -> None:
    """MissingExtraError, in one line, where one of the modules is not installed."""
    if missing := list(filter(_is_missing, modules)):
        raise MissingExtraError(advice(what, missing))


def advice(what: str, missing: Iterable[str]) -> str:
    """What to install for `what`."""
    *others, last = missing
    extras = ",".join(sorted(_without_included({EXTRAS[name] for name in (*others, last)})))
    names = f"{', '.join(others)} and {last}" if others else last
    return f"{what} needs {names}: pip install {extra(extras)}"


def extra(names: str) -> str:
    """What pip gets to install extras: of what is installed, else of the checkout that this is."""
    root = Path(__file__).resolve().parents[1]
    try:
        metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        if (root / "pyproject.toml").is_file():
            return shlex.quote(f"{root}[{names}]")
    return shlex.quote(f"{DISTRIBUTION}[{names}]")


def advice_for(what: str, error: ImportError) -> str | None:
    """The same for an import that failed, whatever else the extra would bring; None where no
    extra would mend it."""
    name = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or name not in EXTRAS or not _is_missing(name):
        return None
    extras = {EXTRAS[name], "record"} if name == "torch" else {EXTRAS[name]}
    return advice(what, [m for m in EXTRAS if EXTRAS[m] in extras and _is_missing(m)])


def _without_included(extras: set[str]) -> set[str]:
    """All that bring torch bring it by way of `check`."""
    return extras - {"check"} if "record" in extras else extras


def _is_missing(module: str) -> bool:
    return importlib.util.find_spec(module) is None
