"""The operations of one run, kept with what they were given and gave: with a bug in one of them,
that alone and what depends on it is computed, and none of the code that called them runs again.

That is the same where the code makes new tensors of tensors and nothing else. Where it writes into
one, draws numbers, or has an operation give it a value, which may decide what it does next, there
is no tape, nor where what it holds would be large. What reads values by no operation is not seen
here (Given.reads_values).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import OpOverload

from ..format.axes import Named
from .arithmetic import name_of
from .bugs import Bug
from .dispatch import plain_arithmetic, tracks_gradients, unwatched
from .given import SEEN
from .lift import WIDE, float64_lift
from .operations import leaves, tensors
from .quantising import QUANTISED
from .replay import Again, Rerun, aside, run_as_it_is
from .sites import UNWRITTEN, Seen, Walk, place_of_call, under
from .spread import Outputs

MOST_BYTES = 1 << 28
"""Of all results of a run."""
MOST_WIDE = 1 << 20
"""Elements of it that are kept in float64."""


@dataclass
class _Step:
    """One operation; a view or a form where it has no number."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: list[Any]
    seen: Seen | None

    def __post_init__(self) -> None:
        self.needs = {t._cdata for t in tensors((self.args, self.kwargs))}
        self.forms = [_form(it) for it in self.results]

    def run(self, changed: Mapping[int, torch.Tensor]) -> Any:
        """On what has changed."""
        return self._on(_replaced(self.args, changed), _replaced(self.kwargs, changed))

    def run_wide(self, changed: Mapping[int, torch.Tensor], wide: _Wide) -> Any:
        """The same in float64; ValueError where a float64 run does not compute it so."""
        if self.func is torch.ops.aten.view.dtype or self.func.namespace not in SEEN:
            raise ValueError(f"[tape] {self.func} is not lifted")
        args, kwargs = (_replaced(it, changed) for it in (self.args, self.kwargs))
        return self._on(wide.of(args), wide.of(kwargs))

    def _on(self, args: Any, kwargs: Any) -> Any:
        return self.func(*args, **kwargs) if self.seen is None else self.seen.run(args, kwargs)


class Tape(Walk):
    """Keeps the operations of a run that it is entered for."""

    def __init__(self) -> None:
        super().__init__()
        self.is_whole = not tracks_gradients()
        self._rerun: Rerun | None = None
        self._steps: list[_Step] = []
        self._at: dict[str, int] = {}
        self._named: dict[str, Named] = {}
        self._bytes = 0
        self._is_over = False
        self._wide = _Wide()
        self._right_wide: dict[int, dict[str, torch.Tensor]] = {}
        """The outputs in float64 from an operation on."""

    @staticmethod
    def of(again: Again, outputs: Outputs) -> Tape | None:
        """The tape of a call as it is; None where it would not be the same."""
        tape = Tape()
        rerun = tape._rerun = again(under(run_as_it_is, lambda: tape))
        tape._is_over = True
        with tape:
            tape._named = outputs(rerun.result, rerun.twin)
        known = {t._cdata for step in tape._steps for t in step.results}
        known.update(*(step.needs for step in tape._steps))
        is_known = all(t._cdata in known for t, _ in tape._named.values())
        return tape if tape.is_whole and is_known else None

    @property
    def right(self) -> dict[str, torch.Tensor]:
        """The outputs of the call."""
        return {name: tensor for name, (tensor, _) in self._named.items()}

    @property
    def seen(self) -> Iterator[Seen]:
        """The operations that have numbers."""
        return (step.seen for step in self._steps if step.seen is not None)

    def with_bug(self, bug: Bug) -> dict[str, torch.Tensor] | None:
        """The outputs with the bug in its operation; None where the code might continue otherwise:
        a result has another form."""
        first = self._at.get(str(bug.site))
        if first is None:
            return None
        step = self._steps[first]
        changed: dict[int, torch.Tensor] = {}

        def begin() -> bool:
            assert step.seen is not None
            return _took(step, bug.change(step.seen), changed)

        return self._outputs_of(changed, first + 1, begin)

    def in_float64(
        self, bug: Bug
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] | None:
        """The outputs without the bug, and with it: its operation and what depends on that in
        float64, on what the run as it is had. None where a float64 run of the code would do
        something else, or much is to be widened."""
        first, wide = self._at.get(str(bug.site)), self._wide
        if first is None or bug.kind == "swap":  # which knows operands by their storage
            return None
        step = self._steps[first]
        assert step.seen is not None
        try:
            with aside(), unwatched(), plain_arithmetic():
                seen = replace(step.seen, args=wide.of(step.args), kwargs=wide.of(step.kwargs))
                if first not in self._right_wide:
                    self._right_wide[first] = self._widened(first, seen.run())
                with float64_lift():
                    changed = bug.change(seen)
                return self._right_wide[first], self._widened(first, changed)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None

    def _widened(self, first: int, result: Any) -> dict[str, torch.Tensor]:
        """The outputs in float64 where an operation gives this."""
        changed: dict[int, torch.Tensor] = {}
        for step in self._steps[first:]:
            if changed:
                if changed.keys().isdisjoint(step.needs):
                    continue
                result = step.run_wide(changed, self._wide)
            made = list(leaves(result))
            if [it.shape for it in made] != [it.shape for it in step.results]:
                raise ValueError(f"[tape] {step.func} gives other shapes")
            changed.update((old._cdata, it) for old, it in zip(step.results, made, strict=True))
        return {name: changed.get(t._cdata, t) for name, (t, _) in self._named.items()}

    def with_values(
        self, argument: torch.Tensor, values: torch.Tensor
    ) -> dict[str, torch.Tensor] | None:
        """The outputs for other values of a tensor that the call was given; None as above, and of
        one that it has not looked at."""
        assert self._rerun is not None
        try:
            own = self._rerun.twin(argument)
        except KeyError:
            return None
        changed = {own._cdata: torch.empty_like(own).copy_(values)}
        if _form(own) != _form(changed[own._cdata]):
            return None
        return self._outputs_of(changed, 0, lambda: True)

    def _outputs_of(
        self, changed: dict[int, torch.Tensor], first: int, begin: Callable[[], bool]
    ) -> dict[str, torch.Tensor] | None:
        """What the steps from the first one on make of what has changed."""
        with aside(), unwatched(), plain_arithmetic():
            try:
                if not begin():
                    return None
                for step in self._steps[first:]:
                    if changed.keys().isdisjoint(step.needs):
                        continue
                    if not _took(step, step.run(changed), changed):
                        return None
            except (RuntimeError, ValueError, IndexError, TypeError):
                return None
        return {name: changed.get(t._cdata, t) for name, (t, _) in self._named.items()}

    def end(self) -> None:
        """What has been called so far does not say what comes of a change."""
        self.is_whole = False
        self._steps.clear()

    def operation(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func._schema.is_mutable or name_of(func) in UNWRITTEN or _draws(func, args, kwargs):
            self.end()
        return super().operation(func, args, kwargs)

    def form(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = super().form(func, args, kwargs)
        self._keep(func, args, kwargs, result, None)
        return result

    def visit(self, seen: Seen) -> Any:
        seen.place = place_of_call()
        seen.result = seen.run()
        if self._is_over:  # how the outputs are stored is no operation of the call
            self._keep(seen.func, seen.args, seen.kwargs, seen.result, None)
            return seen.result
        self._at[str(seen.site)] = len(self._steps)
        self._keep(seen.func, seen.args, seen.kwargs, seen.result, seen)
        return seen.result

    def _keep(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any,
        seen: Seen | None,
    ) -> None:  # fmt: skip
        results = list(leaves(result))
        if not all(isinstance(it, torch.Tensor) for it in results):
            self.end()
        if not self.is_whole:
            return
        self._bytes += sum(it.nbytes for it in results)
        if self._bytes > MOST_BYTES:
            self.end()
            return
        self._steps.append(_Step(func, args, kwargs, results, seen))


class _Wide:
    """Operands in float64; ValueError where that is not what a float64 run has."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._left = MOST_WIDE

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value) if value.dtype in WIDE else value
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.of, value))
        if isinstance(value, Mapping):
            return {name: self.of(it) for name, it in value.items()}
        if isinstance(value, torch.dtype):
            if value in QUANTISED:
                raise ValueError(f"[tape] {value} is rounded to")
            return WIDE.get(value, value)
        return value

    def _tensor(self, t: torch.Tensor) -> torch.Tensor:
        if t._cdata not in self._known:
            self._left -= t.numel()
            if self._left < 0:
                raise ValueError("[tape] too much is widened")
            self._known[t._cdata] = t, t.to(WIDE[t.dtype])
        return self._known[t._cdata][1]


def _draws(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation draws numbers: attention does where it drops out."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[i] if i < len(args) else kwargs.get("dropout_p", argument.default_value)
            return bool(given)
    return True


def _took(step: _Step, result: Any, changed: dict[int, torch.Tensor]) -> bool:
    """Whether a step has results of the forms that it had; they take the place of those then."""
    results = list(leaves(result))
    if len(results) != len(step.results):
        return False
    for old, form, new in zip(step.results, step.forms, results, strict=True):
        if not isinstance(new, torch.Tensor) or _form(new) != form:
            return False
        changed[old._cdata] = new
    return True


def _form(t: torch.Tensor) -> tuple[Any, ...]:
    return t.shape, t.dtype, t.stride(), t.device


def _replaced(value: Any, changed: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return changed.get(value._cdata, value)
    if isinstance(value, (list, tuple)):
        return type(value)([_replaced(it, changed) for it in value])
    if isinstance(value, dict):
        return {name: _replaced(it, changed) for name, it in value.items()}
    return value
