"""Tensor subclasses that are made of other tensors, as quantised weights of torchao and quanto are:
of codes and scales, which are what is seen of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .quantising import CODES

_PACKED = {*CODES, torch.int32}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_wrapper(kind: type) -> bool:
    """Whether tensors of this type are made of others."""
    return kind not in _PLAIN and hasattr(kind, "__tensor_flatten__")


def is_quantised(module: torch.nn.Module) -> bool:
    """Whether it has weights of codes."""
    own = (*module.parameters(), *module.buffers())
    return any(is_wrapper(type(t)) or t.dtype in _PACKED for t in own)


def parts(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Named tensors, with those that such are made of in their place, as `weight.scale`."""
    for name, t in tensors:
        if is_wrapper(type(t)):
            whole: Any = t
            inner, _ = whole.__tensor_flatten__()
            yield from parts((f"{name}.{it}", getattr(whole, it)) for it in inner)
        else:
            yield name, t
