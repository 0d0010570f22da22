"""Checkpoints of single torch operations that run directly in a function or a module's forward.

A TorchFunctionMode sees every operation; it looks at the call that is running (the recorder's top
frame) and records an operation only if that call's tap names it. Operations of child modules have
frames of their own. The oracle is the same torch operation on float64 copies of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..format.axes import QUERY, REPEATED, SCORES, Named, by_dimensions
from ..taps.calls import Block, Frame, only_out
from ..taps.components import Component, is_component, record_component
from ..trace.dispatch import WatchingMode
from ..trace.replay import is_aside
from .recorder import Recorder

_KINDS = {
    "matmul": "matmul",
    "add": "add",
    "mul": "multiply",
    "multiply": "multiply",
    "div": "divide",
    "true_divide": "divide",
    "tanh": "tanh",
    "softmax": "softmax",
}
"""Kinds of operations by the __name__ of the torch function, operator and method alike."""

_SOFTCAP = ("divide", "tanh", "multiply")


@dataclass
class Operation:
    """One torch call that was recorded."""

    kind: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: torch.Tensor


class OperationMode(WatchingMode):
    """Records the named operations of the call that is running."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if is_aside():  # most calls: a rerun's, or the recorder's own
            return func(*args, **kwargs)
        recorder = self._recorder
        frame = recorder.stack[-1] if recorder.stack else None
        if frame is None or recorder.passive():
            return func(*args, **kwargs)
        component = None
        if recorder.options.what.components and is_component(func):
            component = Component(func, args, kwargs)
        result = func(*args, **kwargs)
        if component is not None:
            record_component(recorder, frame.path, component, result)
        kind = _KINDS.get(getattr(func, "__name__", ""))
        names = () if frame.internals is None else frame.internals.names.get(kind or "", ())
        if kind is not None and names and isinstance(result, torch.Tensor):
            _record(recorder, frame, names, Operation(kind, func, args, kwargs, result))
        return result


def _record(recorder: Recorder, frame: Frame, names: tuple[str, ...], operation: Operation) -> None:
    internals = frame.internals
    assert internals is not None
    index = frame.seen[operation.kind]
    block = _describe(operation, index, internals.axes, internals.masks)
    if block is None:
        return
    frame.seen[operation.kind] += 1
    path = ".".join(filter(None, [frame.path, internals.child]))
    function, result = operation.function, operation.result
    if operation.kind == "softmax":
        function, result = _cast_back(function), result.to(operation.args[0].dtype)
    recorder.record(
        path,
        names[min(index, len(names) - 1)],
        block,
        result,
        lambda runner: runner(function, operation.args, operation.kwargs),
    )
    if internals.softcap is not None:
        _record_softcap(recorder, frame, path, internals.softcap, operation)


def _cast_back(softmax: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Computed in float32; the model casts back to its dtype at once."""

    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return softmax(x, *args, **kwargs).to(x.dtype)

    return run


def _describe(
    operation: Operation, index: int, axes: tuple[str, ...] | None, masks: bool
) -> Block | None:
    """The operation as a block; None for one that the format has no block for."""
    args, kwargs, kind = operation.args, operation.kwargs, operation.kind
    x = args[0]
    second = args[1] if len(args) > 1 else None
    if not isinstance(x, torch.Tensor):
        return None
    named: Named = by_dimensions(x) if axes is None or len(axes) != x.ndim else (x, axes)
    out = only_out(named[1])
    if kind == "matmul" and isinstance(second, torch.Tensor):
        return _product(x, second, index)
    if kind == "tanh":
        return Block("activation", {"x": named}, out, {"function": "tanh"})
    if kind == "softmax":
        dim = second if second is not None else kwargs.get("dim")
        return Block("softmax", {"x": named}, out) if dim in (-1, x.ndim - 1) else None
    if kind in ("multiply", "divide") and isinstance(second, (int, float)):
        params = {"factor": float(second), "operation": kind}
        return Block("scale", {"x": named}, out, params)
    if kind == "add" and isinstance(second, torch.Tensor) and not kwargs:
        return _masked_add(named, second) if masks else _sum(named, second)
    return None


def _product(a: torch.Tensor, b: torch.Tensor, index: int) -> Block:
    """scores = q k^T (the first product), then values = probabilities v."""
    if index == 0:  # k is stored as it is in the cache, not as the transposed view
        inputs: dict[str, Named] = {"a": (a, QUERY), "b": (b.mT, REPEATED)}
        return Block("matmul", inputs, only_out(SCORES), {"transpose_b": True})
    inputs = {"a": (a, SCORES), "b": (b, REPEATED)}
    return Block("matmul", inputs, only_out(QUERY), {"transpose_b": False})


def _sum(a: Named, b: torch.Tensor) -> Block | None:
    if a[0].shape != b.shape:
        return None
    return Block("add", {"a": a, "b": (b, a[1])}, only_out(a[1]))


def _masked_add(x: Named, mask: torch.Tensor) -> Block:
    visible = mask > torch.finfo(mask.dtype).min / 2  # zero, or a finite bias
    block = Block("masked_add", {"x": x, "mask": (mask, SCORES)}, only_out(x[1]))
    if not bool(visible.all()):
        block.valid["out"] = (visible, SCORES)
    return block


def _record_softcap(
    recorder: Recorder, frame: Frame, path: str, name: str, operation: Operation
) -> None:
    """The composite of divide, tanh and multiply, once the third has run on the second's result."""
    trail = frame.trail
    chained = bool(trail) and operation.args[0] is trail[-1].result
    frame.trail = [*trail, operation] if chained else [operation]
    steps = frame.trail[-3:]
    if tuple(step.kind for step in steps) != _SOFTCAP:
        return
    x, cap = steps[0].args[:2]

    def replay(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step.function(x, *step.args[1:], **step.kwargs)
        return x

    axes = frame.internals.axes if frame.internals is not None else None
    named: Named = by_dimensions(x) if axes is None else (x, axes)
    block = Block("softcap", {"x": named}, only_out(named[1]), {"cap": float(cap)})
    recorder.record(path, name, block, operation.result, lambda runner: runner(replay, (x,), {}))
