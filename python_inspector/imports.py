"""What transformers imports and no recording needs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_UNNEEDED = {
    "is_sklearn_available": "transformers.generation.candidate_generator",
    "is_scipy_available": "transformers.loss.loss_for_object_detection",
    "is_torchvision_available": "transformers.image_utils",
    "is_torch_distributed_available": "transformers.distributed.tensor_parallel",
}
"""How transformers asks for a package, and the module that imports it first: for assisted
generation, losses of object detection, images, models of which each device has a part."""

_COMPILER = "torch._dynamo"
_GETTING_ITEMS = f"{_COMPILER}._trace_wrapped_higher_order_op"


@contextmanager
def only_what_is_needed() -> Iterator[None]:
    """Inside, transformers is imported as if scikit-learn, SciPy, torchvision and torch.distributed
    were not there, and from here on torch does without the modules of torch.compile, which its
    dispatch modes import, too.

    Where they are, half of the time that loading a model class takes goes into importing them and
    what they need, for functions that no recording calls. Modules that are imported inside go
    without them for good: this is for a process that only records. Does nothing where they are
    imported already.
    """
    from transformers import utils

    with ExitStack() as back:
        for name, user in _UNNEEDED.items():
            if user in sys.modules:
                continue
            for place in (utils, utils.import_utils):
                if hasattr(place, name):  # not in every version
                    back.callback(setattr, place, name, getattr(place, name))
                    setattr(place, name, _no)
        if _COMPILER not in sys.modules:
            sys.modules[_COMPILER] = _Uncompiled(_COMPILER)
            sys.modules[_GETTING_ITEMS] = _GettingItems(_GETTING_ITEMS)
            sys.meta_path.insert(0, _PARTS)
        yield


def _no() -> bool:
    return False


def _compiler() -> ModuleType:
    """The real one, from here on for all."""
    if _PARTS in sys.meta_path:
        sys.meta_path.remove(_PARTS)
        for name in (_COMPILER, _GETTING_ITEMS):
            del sys.modules[name]
    return importlib.import_module(_COMPILER)


class _StandIn(ModuleType):
    """In place of a module that takes long to import. Whoever asks for more than it has imports the
    real one, for all."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package; _Parts finds what is in it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a question of the import system
            raise AttributeError(name)
        _compiler()
        return getattr(importlib.import_module(self.__name__), name)


class _Uncompiled(_StandIn):
    """Functions of which torch.compile is told something are left as they are."""

    @staticmethod
    def disable(
        fn: Callable[..., Any] | None = None, recursive: bool = True, **_more: Any
    ) -> Callable[..., Any]:
        return _same if fn is None else fn

    @staticmethod
    def allow_in_graph(fn: Callable[..., Any]) -> Callable[..., Any]:
        return fn

    @staticmethod
    def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
        return fn


class _GettingItems(_StandIn):
    """What transformers imports by name, and calls for masks that are a user's own functions."""

    def TransformGetItemToIndex(self) -> Any:  # noqa: N802
        return self.__getattr__("TransformGetItemToIndex")()


def _same(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


class _Parts(MetaPathFinder):
    """Finds submodules of the compiler: the real package is imported before any of them, as it
    would be without a stand-in."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{_COMPILER}."):
            return None
        package = _compiler()
        part = sys.modules.get(name)
        if part is None:
            return PathFinder.find_spec(name, package.__path__)
        # Imported with the package. The import system would take its own spec, and run it again.
        part.__spec__ = ModuleSpec(name, _Imported(part))
        return part.__spec__


class _Imported(Loader):
    """Loads a module that is there: by doing nothing."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


_PARTS = _Parts()
