"""The operations of one run, kept with what they were given and gave: with a bug in one of them,
that alone and what depends on it is computed, and none of the code that called them runs again.

That is the same where the code makes new tensors of tensors and nothing else. Where it writes into
one, draws numbers, or has an operation give it a value, which may decide what it does next, there
is no tape, nor where what it holds would be large. What reads values by no operation is not seen
here (Given.reads_values).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from ..format.axes import Named
from .arithmetic import name_of
from .bugs import Bug
from .dispatch import plain_arithmetic, tracks_gradients, unwatched
from .replay import Again, aside, run_as_it_is
from .sites import UNWRITTEN, Seen, Walk, place_of_call, under
from .spread import Outputs

MOST_BYTES = 1 << 28
"""Of all results of a run."""


@dataclass
class _Step:
    """One operation; a view or a form where it has no number."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: list[Any]
    seen: Seen | None

    def __post_init__(self) -> None:
        self.needs = {t._cdata for t in _tensors((self.args, self.kwargs))}
        self.forms = [_form(it) for it in self.results]

    def run(self, changed: Mapping[int, torch.Tensor]) -> Any:
        """On what has changed."""
        args = _replaced(self.args, changed)
        kwargs = {name: _replaced(value, changed) for name, value in self.kwargs.items()}
        return self.func(*args, **kwargs) if self.seen is None else self.seen.run(args, kwargs)


class Tape(Walk):
    """Keeps the operations of a run that it is entered for."""

    def __init__(self) -> None:
        super().__init__()
        self.is_whole = not tracks_gradients()
        self._steps: list[_Step] = []
        self._at: dict[str, int] = {}
        self._named: dict[str, Named] = {}
        self._bytes = 0
        self._is_over = False

    @staticmethod
    def of(again: Again, outputs: Outputs) -> Tape | None:
        """The tape of a call as it is; None where it would not be the same."""
        tape = Tape()
        rerun = again(under(run_as_it_is, lambda: tape))
        tape._is_over = True
        with tape:
            tape._named = outputs(rerun.result, rerun.twin)
        known = {t._cdata for step in tape._steps for t in _tensors(step.results)}
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
        first = self._at[str(bug.site)]
        step = self._steps[first]
        assert step.seen is not None
        changed: dict[int, torch.Tensor] = {}
        with aside(), unwatched(), plain_arithmetic():
            try:
                if not _took(step, bug.change(step.seen), changed):
                    return None
                for step in self._steps[first + 1 :]:
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
        results = tree_leaves(result)
        if not all(isinstance(it, torch.Tensor) for it in results):
            self.end()
        if not self.is_whole:
            return
        self._bytes += sum(it.nbytes for it in results)
        if self._bytes > MOST_BYTES:
            self.end()
            return
        self._steps.append(_Step(func, args, kwargs, results, seen))


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
    results = [result] if isinstance(result, torch.Tensor) else tree_leaves(result)
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
        return type(value)(_replaced(it, changed) for it in value)
    return value


def _tensors(values: Collection[Any]) -> Iterator[torch.Tensor]:
    return (it for it in tree_leaves(values) if isinstance(it, torch.Tensor))
