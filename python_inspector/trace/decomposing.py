"""Operations of torch that it runs as other operations."""

from __future__ import annotations

import functools
from typing import Any

import torch

_DEVICES = ("CPU", "CUDA")
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


@functools.cache
def can_decompose(operation: Any) -> bool:
    """Whether a torch operation is a composite of others. One that a device has a kernel of its own
    for is none (silu_backward), though a composite is registered, too."""
    name = operation.name()
    if any(_has_kernel(name, device) for device in _DEVICES):
        return False
    if hasattr(operation, "_can_decompose"):
        return bool(operation._can_decompose())
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return key in operation.py_kernels or bool(_has_kernel(name, key))


def decomposed(mode: Any, operation: Any, args: Any, kwargs: Any) -> Any:
    """What a composite gives whose parts the dispatch mode sees; NotImplemented of any other
    operation. Composites arrive whole where tensors are inference tensors, or where another
    composite calls them. Some that torch's schema calls a view copy or cast: `to`, `contiguous`,
    `reshape`."""
    if not can_decompose(operation):
        return NotImplemented
    with mode:
        return operation.decompose(*args, **kwargs)
