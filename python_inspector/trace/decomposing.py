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
    for is none (silu_backward), though a composite is registered, too; unless its parts are
    written in Python, as those of upsample_nearest and batch norm are."""
    name, key = operation.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    if key in operation.py_kernels:
        return True
    return bool(_has_kernel(name, key)) and not any(_has_kernel(name, it) for it in _DEVICES)


def decomposed(mode: Any, operation: Any, args: Any, kwargs: Any) -> Any:
    """What a composite gives whose parts the dispatch mode sees; NotImplemented of any other
    operation. Composites arrive whole where tensors are inference tensors, or where another
    composite calls them. Some that torch's schema calls a view copy or cast: `to`, `contiguous`,
    `reshape`."""
    if not can_decompose(operation):
        return NotImplemented
    with mode:
        return operation.decompose(*args, **kwargs)
