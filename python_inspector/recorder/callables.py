"""A torch module or function as something to call, and the tensors that it may use."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..errors import RecordError

Torch = torch.nn.Module | Callable[..., Any]
CAPTURED = "captured_"
"""What a function uses without being given it is called that and a number."""


def name_of(like: Torch) -> str:
    """Of a module its class, of a function its name: the path in ids."""
    while isinstance(like, functools.partial):
        like = like.func
    name = type(like).__name__ if isinstance(like, torch.nn.Module) else ""
    name = name or getattr(like, "__name__", "") or type(like).__name__
    return name.strip("<>") or "function"


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What a nested value holds, by dotted path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}")
    else:
        yield path, value


def callable_of(
    like: Torch, weights: Mapping[str, Any]
) -> tuple[Callable[..., Any], torch.nn.Module]:
    """What is called with the inputs, and the module whose tensors it may use."""
    if not isinstance(like, torch.nn.Module):
        return like, captured(like)
    if not weights:
        return like.forward, like
    module = copy.deepcopy(like)
    for name, tensor in weights.items():
        path, _, attribute = name.rpartition(".")
        try:
            old = getattr(module.get_submodule(path), attribute)
        except AttributeError:
            names = ", ".join(sorted(dict(module.named_parameters()))) or "none"
            raise RecordError(
                f"[check] weights has {name!r}, which {type(like).__name__} lacks; it has {names}"
            ) from None
        if old.shape != tensor.shape:
            raise RecordError(
                f"[check] weights: {name} is {tuple(tensor.shape)}, {type(like).__name__} has "
                f"{tuple(old.shape)}"
            )
        parameter = torch.nn.Parameter(tensor.detach(), requires_grad=False)
        module.get_submodule(path)._parameters[attribute] = parameter
    return module.forward, module


def captured(function: Callable[..., Any]) -> torch.nn.Module:
    """A module of what a function uses without being given it: modules and tensors of its closure,
    its globals, its defaults, and what it is bound to."""
    found: list[Any] = []
    while isinstance(function, functools.partial):
        found += [*function.args, *function.keywords.values()]
        function = function.func
    found.append(getattr(function, "__self__", None))
    bare = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isfunction(bare):
        variables = inspect.getclosurevars(bare)
        found += [*variables.nonlocals.values(), *variables.globals.values()]
        found += [*(bare.__defaults__ or ()), *(bare.__kwdefaults__ or {}).values()]
    holder = torch.nn.Module()
    for i, (_, leaf) in enumerate(leaf for value in found for leaf in leaves(value, "")):
        if isinstance(leaf, torch.nn.Module):
            holder.add_module(f"{CAPTURED}{i}", leaf)
        elif isinstance(leaf, torch.nn.Parameter):
            holder.register_parameter(f"{CAPTURED}{i}", leaf)
        elif isinstance(leaf, torch.Tensor):
            holder.register_buffer(f"{CAPTURED}{i}", leaf.detach())
    return holder
