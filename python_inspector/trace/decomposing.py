"""Operations that are computed as others: composites of torch, and what is registered here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverloadPacket

from ..errors import UsageError
from .decoders import DECODERS
from .operations import leaves

_DEVICES = ("CPU", "CUDA")
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


def register_decomposition(operation: str, code: Callable[..., Any]) -> None:
    """Says what an operation of a library computes: `code` takes its arguments and returns its
    result, in torch's own operations, for the oracle and the simulated kernels. `operation` is a
    name like "mylib::gemv". The reference itself still runs the operation.

    Without it a result of the operation is no oracle: check() calls it unsupported.
    """
    space, _, name = operation.partition("::")
    if not space or not name:
        text = f"operation is {operation!r}; it is a namespace and a name: 'mylib::gemv'"
        raise UsageError(f"[decomposition] {text}")
    short = name.partition(".")[0]
    if short != name:
        text = f"operation is {operation!r}, one overload; name all of them: '{space}::{short}'"
        raise UsageError(f"[decomposition] {text}")
    if not callable(code):
        text = f"code of {operation} is {code!r}; it is a function of the operation's arguments"
        raise UsageError(f"[decomposition] {text}")
    if space in ("prims", "prim") or (space == "aten" and _is_torchs_own(name)):
        text = f"{operation} is torch's own, which is computed in float64 as it is; leave it out"
        raise UsageError(f"[decomposition] {text}")
    _registered[operation] = code


_registered: dict[str, Callable[..., Any]] = {}


def _is_torchs_own(name: str) -> bool:
    """Whether an operation of torch has a float64 kernel, as all have that users call; some of
    those with an underscore are for few dtypes."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, it) for it in packet.overloads()]
    known = any(torch.Tag.core in it.tags or _is_composite(it) for it in overloads)
    return known or not name.startswith("_")


def check_result(operation: Any, made: Any, own: Any) -> None:
    """Raises a UsageError where registered code gives another form than the operation does; what
    one returns that has no result is no matter."""
    if operation._schema.returns and _forms(made) != _forms(own):
        raise UsageError(
            f"[decomposition] the code of {operation._schema.name} gives {_told(made)}, the "
            f"operation itself {_told(own)}; the code must give the same shapes, and floats for "
            "floats"
        )


def _forms(value: Any) -> list[Any]:
    return [
        (it.shape, it.is_floating_point(), it.is_complex()) if isinstance(it, torch.Tensor) else it
        for it in leaves(value)
    ]


def _told(value: Any) -> str:
    told = [
        f"{it.dtype} {list(it.shape)}" if isinstance(it, torch.Tensor) else repr(it)
        for it in leaves(value)
    ]
    return ", ".join(told)


def registered(operation: Any) -> Callable[..., Any] | None:
    """What an operation, in any overload, is said to compute."""
    name = operation._schema.name
    return _registered.get(name) or DECODERS.get(name)


def can_decompose(operation: Any) -> bool:
    return registered(operation) is not None or _is_composite(operation)


def code_of(function: Any) -> Callable[..., Any] | None:
    """What an operation is said to compute that is a composite, called by its packet's name: torch
    takes it apart before a mode sees it, and its own code may refuse float64."""
    overloads = function.overloads() if isinstance(function, OpOverloadPacket) else []
    if len(overloads) != 1:
        return None
    operation = getattr(function, overloads[0])
    return registered(operation) if _is_composite(operation) else None


@functools.cache
def _is_composite(operation: Any) -> bool:
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
    code = registered(operation)
    if code is None and not _is_composite(operation):
        return NotImplemented
    with mode:
        if code is not None:
            return code(*args, **kwargs)
        return operation.decompose(*args, **kwargs)
