"""A function under check(): called on copies of the arguments, and what it did with them.

Its results are paired with those of `like` by place; arguments are results, too. It is called more
than once, on fresh copies: other bits are nondeterminism, where `like` has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils._pytree import tree_map

from ..arrays import as_array, converter, require_plain
from ..errors import NO_GRADIENT, UsageError
from ..format.operands import Output, output_of
from ..recorder.arguments import Expected, Given
from ..recorder.one_call import Observed
from ..recorder.results import (
    Leaf,
    ResultError,
    is_array,
    kind_of,
    matched,
    template_of,
    tensors_by_name,
)
from ..taps.calls import bound_arguments
from ..taps.generic import numbers_of, tensors_of
from .inputs import Case
from .sealed import Replayed
from .worker_process import printable

_T = TypeVar("_T")


class OutputTypeError(TypeError):
    """An output that nothing here can judge."""


@dataclass
class Run:
    """One call: outputs by the names that the recording has, and what is wrong apart from them."""

    outputs: dict[str, Output] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)


@dataclass
class Calls:
    """All calls of one case. `again` is a later one with other bits than the first."""

    first: Run
    again: Run | None = None
    unstable: str = ""
    """Which bits were other ones, where those of `like` are not."""

    @property
    def dtypes(self) -> set[str]:
        return {it.dtype for it in self.first.outputs.values()}

    @property
    def faults(self) -> list[str]:
        later = [] if self.again is None else self.again.faults
        return self.first.faults + [
            f"in a later call: {fault}" for fault in later if fault not in self.first.faults
        ]


@dataclass(frozen=True)
class Kernel:
    """The function, and how it is called."""

    function: Callable[..., Any]
    arrays: str | Callable[[Any], Any]
    repeat: int
    mutates: Collection[str] | None = None
    """Arguments that it may change; None: those that `like` changes."""

    def again(self) -> Kernel:
        """Called once, on cases that it was not called on before."""
        if isinstance(self.function, Replayed) and self.function.again is not None:
            return replace(self, function=self.function.again, repeat=1)
        return replace(self, repeat=1)

    def call(self, observed: Observed, case: Case) -> Calls:
        """Calls it on one case, of which `observed` says what `like` did."""
        self._require_names(observed, case)
        calls = Calls(self.run(observed, case))
        for _ in range(self.repeat - 1):
            run = self.run(observed, case)
            if run == calls.first:
                continue
            calls.again = run
            calls.unstable = _unequal(calls.first, run, observed.unstable)
            if calls.unstable or run.faults:
                break
        return calls

    def run(self, observed: Observed, case: Case) -> Run:
        """One call of it."""
        expected = self._expected(observed, case)
        return self._called(
            case, lambda returned, given: self._read(returned, given, expected, observed)
        )

    def observed(self, case: Case) -> Observed:
        """What a call does, where nothing else says what it should."""
        call = self.function
        call = call.forward if isinstance(call, torch.nn.Module) else call
        bound = bound_arguments(call, *case.arguments)
        everything = {**bound, **case.weights}
        require_plain("invariant", tensors_of(everything, lambda value: value).items())

        def read(returned: Any, given: Given) -> Observed:
            made = tree_map(_stand_in, returned)
            changed = given.changed(everything)
            names = (*tensors_by_name(made), *(f"{name}_after" for name in sorted(changed)))
            numbers = numbers_of(everything, given.twin)
            return Observed(template_of(made), bound, changed, numbers, names)

        return self._called(case, read)

    def _called(self, case: Case, read: Callable[[Any, Given], _T]) -> _T:
        """What is read of a call on copies; with gradients if it fails without them."""
        convert = converter(self.arrays)
        with torch.no_grad():
            given = Given(convert, grad=False)
            args, kwargs = map(given.of, case.called)
            try:
                return read(self.function(*args, **kwargs), given)
            except RuntimeError as error:
                if NO_GRADIENT not in str(error):
                    raise
        with torch.enable_grad():
            given = Given(convert, grad=True)
            args, kwargs = map(given.of, case.called)
            returned = self.function(*args, **kwargs)
        with torch.no_grad():
            return read(returned, given)

    def _expected(self, observed: Observed, case: Case) -> Expected:
        """A scratch argument may become anything."""
        every = {**observed.arguments, **case.weights}
        if self.mutates is None:
            return Expected(every, observed.changed, observed.numbers)
        names = tensors_of(every, lambda it: it)
        open_ = {name for name in names if _names(self.mutates, name)}
        changed = observed.changed & open_
        return Expected(every, changed, observed.numbers, frozenset(open_ - changed))

    def _require_names(self, observed: Observed, case: Case) -> None:
        every = {**observed.arguments, **case.weights}
        for name in self.mutates or ():
            if not any(_names((name,), it) for it in tensors_of(every, lambda it: it)):
                known = ", ".join(tensors_of(every, lambda it: it)) or "none"
                raise UsageError(f"mutates: no argument is called {name!r}; tensors are: {known}")

    def _read(self, returned: Any, given: Given, expected: Expected, observed: Observed) -> Run:
        run = Run()
        _read_results(run, returned, observed)
        run.faults += given.faults(expected)
        run.not_judged += [f"{name}_after" for name in sorted(expected.scratch)]
        for name, value in given.after(expected).items():
            after = f"{name}_after"
            if value is None:
                run.faults.append(f"argument {name} is not there after the call, `like` changes it")
            elif after in observed.outputs:
                run.outputs[after] = _output_of(after, value)
        if not run.outputs and not run.faults and observed.outputs:
            run.faults.append(
                f"the function returned {kind_of(returned)}, and nothing of what `like` returns: "
                f"{', '.join(observed.outputs)}"
            )
        return run


def _stand_in(value: Any) -> Any:
    """A tensor of an array's shape: what a template is made of."""
    if isinstance(value, torch.Tensor) or not is_array(value):
        return value
    return torch.empty(np.shape(value))


def _names(given: Collection[str], tensor: str) -> bool:
    """Whether an argument is named, or what it is a part of."""
    return any(tensor == name or tensor.startswith(f"{name}.") for name in given)


def _read_results(run: Run, returned: Any, observed: Observed) -> None:
    template = observed.template
    if isinstance(template, Leaf) and template.kind == "none":
        return  # a function that works in place may hand over what it likes
    try:
        pairs = list(matched(template, returned))
    except ResultError as error:
        run.faults.append(printable(str(error)))
        return
    for leaf, value in pairs:
        if value is None:
            if leaf.kind == "empty":
                run.not_judged.append(leaf.path)
        elif leaf.kind == "tensor":
            run.outputs[leaf.name] = _output_of(leaf.name, value)
        elif leaf.kind == "empty":
            _hold_empty(run, leaf, value)
        elif leaf.kind == "other":
            _hold_plain(run, leaf, value)


def _hold_empty(run: Run, leaf: Leaf, value: Any) -> None:
    shape = _output_of(leaf.path, value).shape
    parts = (2,) if leaf.value.is_complex() else ()
    if shape != (*leaf.value.shape, *parts):
        run.faults.append(
            f"{leaf.path} is {list(shape)}, `like` returns the empty {list(leaf.value.shape)}"
        )


def _hold_plain(run: Run, leaf: Leaf, value: Any) -> None:
    """Whole numbers and words have to be equal; of other things nothing is known."""
    if not isinstance(leaf.value, (bool, int, str)):
        run.not_judged.append(leaf.path)
    elif value != leaf.value:
        run.faults.append(f"{leaf.path} is {value!r}, `like` returns {leaf.value!r}")


def _output_of(name: str, value: Any) -> Output:
    try:
        return output_of(as_array(value))
    except TypeError as error:
        raise OutputTypeError(f"the function's output {name} {error}") from None


def _unequal(first: Run, again: Run, loose: frozenset[str]) -> str:
    """The output with other bits that `like` gives the same twice."""
    for name, one in first.outputs.items():
        other = again.outputs.get(name)
        if other == one or name in loose:
            continue
        told = f"{name} has other bits when the function is called again on the same operands"
        if other is None or (other.dtype, other.shape) != (one.dtype, one.shape):
            return told
        items = max(1, len(one.data) // max(1, int(np.prod(one.shape))))
        a, b = (np.frombuffer(it.data, np.uint8).reshape(-1, items) for it in (one, other))
        differs = (a != b).any(-1)
        at = [int(i) for i in np.unravel_index(int(differs.argmax()), one.shape)]
        return (
            f"{told}: {int(differs.sum())} of {len(a)} elements, the first at {at}; two calls of "
            f"`like` give the same bits (repeat=1 calls once)"
        )
    return ""
