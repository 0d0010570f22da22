"""Operations of a run by name and number, `mul #7`: where a bug is planted.

A mode that is entered over another one (rounded_run, float64_lift) and sees every operation before
that: composites taken apart, views among them where they choose (slices, chunks). Numbers count the
operations of one name from 0, so that a run in float64, which has other casts, numbers the rest
alike.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from .arithmetic import name_of
from .bounds import require_inside, with_aligned_bias
from .decomposing import decomposed
from .dispatch import DispatchMode
from .replay import Rerun, Runner

CHOOSING_VIEWS = {"slice", "narrow", "select", "split", "split_with_sizes", "chunk", "unbind"}
UNWRITTEN = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
}  # fmt: skip
"""Make memory that the code writes to later."""
_FORMS = UNWRITTEN | {
    "_unsafe_view", "_reshape_alias", "_local_scalar_dense", "lift_fresh", "lift_fresh_copy",
    "detach", "alias", "_fused_sdp_choice", "clone",
}  # fmt: skip
"""Nothing is chosen or computed."""
ACTIVATIONS = {"silu", "gelu", "relu", "sigmoid", "tanh", "softplus", "leaky_relu", "hardtanh"}
"""Of one operand: where its result is multiplied, gate and up may be exchanged."""


@dataclass(frozen=True)
class Site:
    op: str
    number: int

    def __str__(self) -> str:
        return f"{self.op} #{self.number}"


@dataclass
class Seen:
    """One operation as the code under the mode calls it."""

    site: Site
    func: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    sources: Mapping[int, Seen]
    """Which activation made a tensor, by the tensor's storage, as far as that is asked for."""
    result: Any = None
    place: str = ""
    """File and line of the code that calls it, where that is asked for."""

    def run(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The operation on these operands instead of its own."""
        given = self.args if args is None else args
        return _run(self.site.op, self.func, given, self.kwargs if kwargs is None else kwargs)

    def argument(self, i: int) -> str:
        """The name that the operation's schema has for a positional argument."""
        return str(self.func._schema.arguments[i].name)

    def value(self, name: str) -> Any:
        """The argument of this name in the schema; None where there is none."""
        for i, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                return self.args[i] if i < len(self.args) else self.kwargs.get(name)
        return None

    @property
    def writes(self) -> bool:
        return bool(self.func._schema.is_mutable)


class Walk(DispatchMode):
    """Numbers operations and hands each to `visit`, which runs it.

    Memory that is made unwritten holds zeros: where a bug writes outside its place, what it leaves
    out is read, and the bug must do the same in every run.
    """

    def __init__(self, only: str | None = None) -> None:
        """`only`: operations of other names are run unseen, which is faster."""
        super().__init__()
        self._only = only
        self._numbers: Counter[str] = Counter()
        self._sources: dict[int, Seen] = {}

    def visit(self, seen: Seen) -> Any:
        return seen.run()

    def form(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs what has no number."""
        return func(*args, **kwargs)

    def operation(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = name_of(func)
        if name in UNWRITTEN:
            return _zeroed(func(*args, **kwargs))
        result = decomposed(self, func, args, kwargs)
        if result is not NotImplemented:
            return result
        if name in _FORMS or (func.is_view and name not in CHOOSING_VIEWS):
            return self.form(func, args, kwargs)
        if self._only not in (None, name) and name not in ACTIVATIONS:
            return _run(name, func, args, kwargs)
        seen = Seen(Site(name, self._numbers[name]), func, args, kwargs, self._sources)
        self._numbers[name] += 1
        result = self.visit(seen)
        if name in ACTIVATIONS and isinstance(result, torch.Tensor):
            seen.result = result  # kept, so that its storage's address stays its own
            self._sources[result.untyped_storage()._cdata] = seen
        return result


def _run(op: str, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = with_aligned_bias(op, args)
    require_inside(op, given)
    return func(*given, **kwargs)


def place_of_call() -> str:
    """File and line of the innermost code that is neither torch's nor ours, as `norm.py:12`.

    Of an operation that a mode sees, up to where the call under the mode began: a torch module has
    no such code.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _inside_code:
        file = frame.f_code.co_filename
        mode = frame.f_code.co_name in ("__torch_function__", "__torch_dispatch__")
        if not mode and not file.startswith(_NOT_THEIRS) and not file.startswith("<"):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


_NOT_THEIRS = (
    f"{Path(torch.__file__).parent}{os.sep}",
    f"{Path(__file__).parents[1]}{os.sep}",
    contextlib.__file__,
)
"""Of torch, of this package, and of what both wrap functions in."""


def _zeroed(t: torch.Tensor) -> torch.Tensor:
    with _disable_current_modes():  # it is no operation of the code
        return t.zero_()


def under(runner: Runner, mode: Callable[[], AbstractContextManager[Any]]) -> Runner:
    """The runner with the function itself inside a mode of its own."""

    def run(
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        modules: Any = (),
    ) -> Rerun:
        inside = functools.partial(_inside, function, mode)
        functools.update_wrapper(inside, function)
        return runner(inside, args, kwargs, modules)

    return run


def _inside(
    function: Callable[..., Any],
    mode: Callable[[], AbstractContextManager[Any]],
    /,
    *given: Any,
    **named: Any,
) -> Any:
    with mode():
        return function(*given, **named)


_inside_code = _inside.__code__


def floats(values: Sequence[Any]) -> Iterator[int]:
    """Positions of the floating tensors among arguments."""
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            yield i
