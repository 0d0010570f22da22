"""What every mode of the oracle that sees torch's operations has in common."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch._ops import OpOverload
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,
    _pop_mode_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode

from .decomposing import code_of
from .quantising import casts_in_place
from .wrapped import is_wrapper


class WatchingMode(TorchFunctionMode):
    """A mode that looks at what a model's run calls, and at nothing that reruns call."""


@contextmanager
def unwatched() -> Iterator[None]:
    """Takes such a mode away, where it is the innermost: its Python is a tenth of a rerun."""
    mode = _get_current_function_mode()
    if not isinstance(mode, WatchingMode):
        yield
        return
    with _pop_mode_temporarily():
        yield


@contextmanager
def without_functions(subclasses: bool) -> Iterator[None]:
    """Without what torch's functions are replaced by; what `subclasses` of tensors replace them by
    is how these compute."""
    if not subclasses:
        with torch._C.DisableTorchFunction():
            yield
        return
    with ExitStack() as stack:
        while torch._C._len_torch_function_stack():
            stack.enter_context(_pop_mode_temporarily())
        yield


class FunctionMode(TorchFunctionMode):
    """A mode that looks at functions, also at those by which a subclass of tensors computes one,
    and at those of registered code."""

    def __init__(self) -> None:
        super().__init__()
        self._inside: set[tuple[Any, ...]] = set()

    def call(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        wrapper = next(filter(is_wrapper, types), None)
        if wrapper is not None:
            key = func, *map(id, args)
            if key in self._inside:  # the subclass leaves it to torch
                return func(*args, **kwargs)
            self._inside.add(key)
            try:
                with self:
                    return wrapper.__torch_function__(func, types, args, kwargs)
            finally:
                self._inside.discard(key)
        code = code_of(func)
        if code is None:
            return func(*args, **kwargs)
        with self:
            return code(*args, **kwargs)


_gradients: ContextVar[bool] = ContextVar("python_inspector_gradients", default=False)


def tracks_gradients() -> bool:
    return _gradients.get()


@contextmanager
def gradients(wanted: bool) -> Iterator[None]:
    """Reruns inside track gradients, or do not."""
    token = _gradients.set(wanted)
    try:
        with torch.set_grad_enabled(wanted):
            yield
    finally:
        _gradients.reset(token)


@contextmanager
def plain_arithmetic() -> Iterator[None]:
    """Without inference tensors, autocast, and gradients that were not asked for."""
    autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    grad = torch.is_grad_enabled() == tracks_gradients()
    if grad and not autocast and not torch.is_inference_mode_enabled():
        yield  # it is so already, as for hundreds of bugs
        return
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(tracks_gradients()))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def without_fused_layers() -> Iterator[None]:
    """Whole encoder layers and LSTMs are computed operation by operation: of one that is fused
    nothing is seen, and it has no float64 kernel."""
    fused, own = torch.backends.mha.get_fastpath_enabled(), torch._C
    libraries = [
        (own._get_mkldnn_enabled(), own._set_mkldnn_enabled),
        (own._get_cudnn_enabled(), own._set_cudnn_enabled),
    ]  # not their flags(), which set what else a library may do
    torch.backends.mha.set_fastpath_enabled(False)
    for _, enable in libraries:
        enable(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for before, enable in libraries:
            enable(before)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of a mode's `__torch_dispatch__`: dynamo compiles nothing in it. torch's own way imports
    dynamo (two seconds) at the first operation, and takes its time at each; nothing is compiled in
    a process that has not imported it."""
    apart = functools.cache(lambda: torch.compiler.disable(function))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (apart() if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return call


class UncompiledMode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps it in its own way, see uncompiled()."""
        return False


class DispatchMode(UncompiledMode):
    """A mode whose operation() replaces each operation below it.

    One with `out=` is the same operation without, and a copy. A copy that casts is a cast, and a
    copy of codes.
    """

    @uncompiled
    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        wrapper = next(filter(is_wrapper, types), None)
        if wrapper is not None:
            with self:
                return wrapper.__torch_dispatch__(func, types, args, kwargs)
        if casts_in_place(func, args):
            target, value, *rest = args
            cast = torch.ops.aten._to_copy.default
            args = target, self.operation(cast, (value,), {"dtype": target.dtype}), *rest
        found = _without_out(func)
        if found is None:
            result = self.operation(func, args, kwargs)
            return result if func._schema.returns else None  # whatever registered code returns
        plain, names = found
        outs = [kwargs[name] for name in names]
        given = {name: value for name, value in kwargs.items() if name not in names}
        if given.get("dtype") is None and any(a.name == "dtype" for a in plain._schema.arguments):
            given["dtype"] = outs[0].dtype
        made = self.operation(plain, args, given)
        for out, value in zip(outs, made if len(outs) > 1 else [made], strict=True):
            if out.shape != value.shape:
                out.resize_(value.shape)
            self.operation(torch.ops.aten.copy_.default, (out, value), {})
        return outs[0] if len(outs) == 1 else tuple(outs)

    def write(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """A copy that the mode sees."""
        with self:
            target.copy_(value)

    def operation(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


@functools.cache
def _without_out(func: OpOverload) -> tuple[OpOverload, tuple[str, ...]] | None:
    """Of an operation that writes to tensors named for it, the one that returns new ones, and the
    names; None of any other."""
    arguments = func._schema.arguments
    outs = tuple(a.name for a in arguments if a.is_out)
    if not outs or func.namespace != "aten":
        return None
    rest = {a.name: str(a.type) for a in arguments if not a.is_out}
    packet = func.overloadpacket
    for name in packet.overloads():
        plain: OpOverload = getattr(packet, name)
        schema = plain._schema
        own = {a.name: str(a.type) for a in schema.arguments}
        spare = all(a.has_default_value() for a in schema.arguments if a.name not in rest)
        fits = rest.items() <= own.items() and spare and len(schema.returns) == len(outs)
        if fits and not schema.is_mutable:
            return plain, outs
    return None
