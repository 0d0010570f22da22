"""Judges kernels against the unedited code of torch and transformers.

`plumbline.check(my_kernel, like=module_or_function, inputs=(x,))` is one line of a test; help() of
each name here says more. `plumbline.inspector` records and judges, `plumbline.reports` compares.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .inspector import *  # type: ignore[import-not-found]  # noqa: F403


def _checkout() -> Path | None:
    """This folder in a checkout that is on sys.path, which goes before what is installed."""
    found = PathFinder.find_spec("python_inspector")  # another project's has no such folder
    folder = Path(found.origin).resolve().parent / "plumbline" if found and found.origin else None
    return folder if folder and folder.is_dir() else None


_folder = _checkout()
if _folder is not None:
    import_module("python_inspector")  # and from here on plumbline.inspector is that
if _folder not in (None, Path(__file__).resolve().parent):
    del sys.modules[__name__]
    import_module(__name__)  # which the import system hands out, instead of this
else:
    from . import inspector as _inspector

    __version__ = _inspector.__version__
    __all__ = list(_inspector.__all__)


def __getattr__(name: str) -> Any:
    """On first use: what needs torch is imported then."""
    if name.startswith("__") or name == "_inspector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(_inspector, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
