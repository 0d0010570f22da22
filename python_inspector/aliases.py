"""One copy of every module, under whichever of its names.

The folders `python_inspector` and `reports` are packages of these names in a checkout. Where the
project is installed they are `plumbline.inspector` and `plumbline.reports` (pyproject.toml maps
them), since their own names belong to others on PyPI. A process that uses both names gets the same
modules: two copies of a class would be two classes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PACKAGE = __name__.rpartition(".")[0]
"""How this package is called here: python_inspector, or plumbline.inspector where installed."""

_HOME = Path(__file__).resolve().parent
_INSTALLED = {"python_inspector": "plumbline.inspector", "reports": "plumbline.reports"}


class OneCopy(MetaPathFinder):
    """Finds modules by names that they do not have themselves."""

    def __init__(self, same: dict[str, str], folders: dict[str, Path]) -> None:
        """`same`: from another name of a package to its own; `folders`: of packages that are not on
        the path."""
        self._same = same
        self._folders = folders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._folders:
            return spec_from_file_location(fullname, self._folders[fullname] / "__init__.py")
        for alias, own in self._same.items():
            if fullname == alias and _is_free(alias):
                return _same_as(alias, own)
            if fullname.startswith(f"{alias}.") and sys.modules[alias] is sys.modules.get(own):
                return _same_as(fullname, own + fullname[len(alias) :])
        return None


def _same_as(name: str, own: str) -> ModuleSpec | None:
    found = find_spec(own)
    if found is None:
        return None
    is_package = found.submodule_search_locations is not None
    return ModuleSpec(name, _Same(found), origin=found.origin, is_package=is_package)


class _Same(Loader):
    """Loads a module by importing it under its own name."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def exec_module(self, module: ModuleType) -> None:
        # The import system hands out what is there afterwards.
        sys.modules[module.__name__] = importlib.import_module(self._spec.name)

    def get_code(self, _name: str) -> CodeType | None:
        """What `python -m` runs."""
        loader: Any = self._spec.loader
        code: CodeType | None = loader.get_code(self._spec.name)
        return code


def _is_free(name: str) -> bool:
    """Whether a name means this project: below plumbline always; python_inspector and reports
    where a checkout has them or this is one, unless they are packages of others."""
    if name not in _INSTALLED:
        return True
    found = PathFinder.find_spec(name)
    if found is None or found.origin is None:
        return _HOME.name == "python_inspector"
    return (Path(found.origin).parents[1] / "python_inspector" / "plumbline").is_dir()


def join() -> None:
    """Makes the other names of the package known, once it is imported under one of them."""
    if PACKAGE != "python_inspector":
        sys.meta_path.insert(0, OneCopy(_INSTALLED, {}))
        return
    same, folders = {"plumbline.inspector": PACKAGE}, {"plumbline": _HOME / "plumbline"}
    beside = _HOME.parent / "reports"
    found = PathFinder.find_spec("reports")
    if found and found.origin and Path(found.origin).resolve().parent == beside:
        same["plumbline.reports"] = "reports"
    else:  # another project's, or none
        folders["plumbline.reports"] = beside
    sys.meta_path.insert(0, OneCopy(same, folders))
