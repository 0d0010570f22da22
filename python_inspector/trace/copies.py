"""Copies of the arguments of a call, for runs that leave no trace in the originals."""

from __future__ import annotations

import copy
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ..foreign import is_cache, is_cache_layer, is_config, is_model_output

Memo = dict[int, tuple[Any, Any]]
"""id of an original object -> (the original, kept alive so that the id stays its own; its copy)."""


class _LazyLayers(list[Any]):
    """A cache's layers, copied one by one when they are touched."""

    def __init__(self, layers: list[Any], copies: Copies) -> None:
        super().__init__(layers)
        self._done: dict[int, Any] = {}
        self._copies = copies

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        if index not in self._done:
            with (
                _disable_current_modes(),
                torch._C.DisableTorchFunction(),
                torch.inference_mode(False),
                torch.no_grad(),
            ):
                self._done[index] = self._copies.of(super().__getitem__(index))
        return self._done[index]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def touched(self) -> dict[int, Any]:
        """The copies that were made: of layers that the run looked at."""
        return dict(self._done)


class Copies:
    """Copies of input trees: they never alias the originals, and keep aliasing inside.

    Views of one storage stay that where a call is made with aliases_kept(). `lazy`: a cache's
    layers are copied when they are touched.
    """

    def __init__(
        self,
        tensor: Callable[[torch.Tensor, str], Any] | None,
        dtypes: Mapping[Any, torch.dtype],
        memo: Memo,
        *,
        lazy: bool = True,
    ) -> None:
        self._tensor = tensor
        self._dtypes = dtypes
        self._lazy = lazy
        self._shared: dict[int, torch.Tensor | None] = {}
        self.memo = memo

    def of_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments copied; positional ones stay positional, their names tell which are masks."""
        if _aliases.get():
            self._shared = dict.fromkeys(_storages_of_several((args, kwargs)))
        names = [*parameter_names(function), *[""] * len(args)]
        return (
            tuple(self.of(value, name) for name, value in zip(names, args, strict=False)),
            {key: self.of(value, key) for key, value in kwargs.items()},
        )

    def of(self, value: Any, name: str = "") -> Any:
        if id(value) in self.memo:
            return self.memo[id(value)][1]
        new: Any
        if isinstance(value, torch.Tensor):
            shares = bool(self._shared) and value.layout is torch.strided
            shares = shares and value.untyped_storage()._cdata in self._shared
            new = self._view(value, name) if shares else self.tensor(value.detach(), name)
        elif is_cache(value):
            new = copy.copy(value)
            for key, item in vars(value).items():
                lazy = self._lazy and key == "layers"
                vars(new)[key] = _LazyLayers(item, self) if lazy else self.of(item, key)
        elif is_cache_layer(value) or is_state(value):
            new = copy.copy(value)
            self.memo[id(value)] = (value, new)  # it may hold itself
            vars(new).update({key: self.of(item, key) for key, item in vars(value).items()})
        elif isinstance(value, torch.dtype):
            new = self._dtypes.get(value, value)
        elif isinstance(value, dict):
            items = ((key, self.of(item, str(key))) for key, item in value.items())
            if is_model_output(value):
                new = type(value)(**dict(items))
            else:
                new = type(value)(items) if type(value) in (dict, OrderedDict) else dict(items)
        elif isinstance(value, tuple):
            parts = [self.of(item, name) for item in value]
            new = type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        elif isinstance(value, list):
            new = [self.of(item, name) for item in value]
        else:
            new = self.other(value)
        self.memo[id(value)] = (value, new)
        return new

    def tensor(self, value: torch.Tensor, name: str) -> Any:
        assert self._tensor is not None
        return self._tensor(value, name)

    def other(self, value: Any) -> Any:
        """What holds no tensors that are known of: itself."""
        return value

    def _view(self, value: torch.Tensor, name: str) -> torch.Tensor:
        """A view of the one copy of a storage that others are views of, too."""
        storage = value.untyped_storage()
        base = self._shared[storage._cdata]
        if base is None:
            flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(storage)
            base = self._shared[storage._cdata] = self.tensor(flat, name)
        return base.as_strided(value.shape, value.stride(), value.storage_offset())


_aliases: ContextVar[bool] = ContextVar("python_inspector_aliases", default=False)


@contextmanager
def aliases_kept() -> Iterator[None]:
    """Arguments that are views of one storage are copied as such: the code may write to it."""
    token = _aliases.set(True)
    try:
        yield
    finally:
        _aliases.reset(token)


def _storages_of_several(values: Any) -> set[int]:
    """Those that more than one tensor of the same dtype is a view of."""
    seen: dict[int, dict[int, torch.Tensor]] = {}
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            seen.setdefault(leaf.untyped_storage()._cdata, {})[id(leaf)] = leaf
    return {
        storage
        for storage, views in seen.items()
        if len(views) > 1 and len({view.dtype for view in views.values()}) == 1
    }


def is_state(value: Any) -> bool:
    """Whether an object of an undescribed class holds tensors, like a cache."""
    if not hasattr(value, "__dict__") or callable(value):
        return False
    if is_config(value) or isinstance(value, (dict, list, tuple, torch.Tensor)):
        return False
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(list(vars(value).values())))


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's parameters; () for a builtin without a signature."""
    if isinstance(function, functools.partial):  # what runs a function under a mode of its own
        function = getattr(function, "__wrapped__", function)
    return _parameter_names(getattr(function, "__func__", function), inspect.ismethod(function))


@functools.lru_cache(maxsize=512)
def _parameter_names(function: Callable[..., Any], bound: bool) -> tuple[str, ...]:
    try:
        names = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()
    return names[1:] if bound else names
