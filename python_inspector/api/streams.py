"""A call as engines make it: on a stream of its own, where what runs on another one comes too
early, or captured in a graph, where what the capture did not see is not done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

_SIDE, _PRODUCTS = 4096, 20
"""Work that keeps the stream busy until all of the call is queued: about 50 ms."""


def device_with_streams(tensors: list[torch.Tensor]) -> torch.device | None:
    """The first accelerator on which tensors are."""
    return _first(tensors, "Stream")


def device_with_graphs(tensors: list[torch.Tensor]) -> torch.device | None:
    """The first that has graphs, too."""
    return _first(tensors, "CUDAGraph")


def _first(tensors: list[torch.Tensor], having: str) -> torch.device | None:
    found = [t.device for t in tensors if t.device.type not in ("cpu", "meta")]
    return next((it for it in found if hasattr(torch.get_device_module(it), having)), None)


def on_another_stream(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """The function, called while the stream is busy and its operands' values are not there yet."""

    def called(*args: Any, **kwargs: Any) -> Any:
        module = torch.get_device_module(device)
        given = _fillable(args, kwargs, device)
        values = [t.clone() for t in given]
        for t in given:
            t.fill_(float("nan")) if t.is_floating_point() else t.zero_()
        module.synchronize(device)
        with module.stream(module.Stream(device)):
            work = torch.ones(_SIDE, _SIDE, device=device)
            for _ in range(_PRODUCTS):
                work = work @ work
            for t, value in zip(given, values, strict=True):
                t.copy_(value)
            returned = function(*args, **kwargs)
        module.synchronize(device)
        return returned

    return called


def in_a_graph(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """The function, called once and captured while its floats are ones, and replayed on the values
    of its operands: results of what it kept, or of other work than is captured, are those of
    ones."""

    def called(*args: Any, **kwargs: Any) -> Any:
        module = torch.get_device_module(device)
        given = _fillable(args, kwargs, device)
        values = [t.clone() for t in given]

        def fill() -> None:
            for t, value in zip(given, values, strict=True):
                t.fill_(1) if t.is_floating_point() else t.copy_(value)

        stream, graph = module.Stream(device), module.CUDAGraph()
        fill()
        module.synchronize(device)
        with module.stream(stream):  # what is set up once cannot be captured
            function(*args, **kwargs)
        module.synchronize(device)
        fill()
        with module.graph(graph, stream=stream):
            returned = function(*args, **kwargs)
        for t, value in zip(given, values, strict=True):
            t.copy_(value)
        module.synchronize(device)
        with module.stream(stream):
            graph.replay()
        module.synchronize(device)
        return tree_map(lambda it: it.clone() if isinstance(it, torch.Tensor) else it, returned)

    return called


def _fillable(args: Any, kwargs: Any, device: torch.device) -> list[torch.Tensor]:
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    return [t.detach() for t in given if t.device == device and _can_be_filled(t)]


def _can_be_filled(t: torch.Tensor) -> bool:
    """Whether each element has memory of its own."""
    return t.layout is torch.strided and 0 not in t.stride()
