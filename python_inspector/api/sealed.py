"""check(sealed=...): the function runs in a process of its own, which has ended before the
reference, the oracle and the limits are computed, and leaves its results as files."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FormatError, UsageError
from . import worker_process
from .sanitizing import Sanitized, sanitized
from .worker_process import RAISED, Bounds, SealedError, words_in

if TYPE_CHECKING:
    import torch

    from ..recorder.kernel_gradients import Asked
    from .timing import Timing

MOST_REPEATED = 1 << 30
"""Bytes of a tensor that are more than its storage has."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Sealed:
    """How a sealed function runs: the seconds that all of its calls may take, and the bytes of
    memory of its processes, by default nine tenths of what is free. `spare`: afterwards a process
    waits whose imports are done, for the next verdict. `time`: it is timed next to
    `like`, once it was called, and called again; `sanitize`: it runs again under
    compute-sanitizer."""

    timeout: float = 60.0
    memory: int | None = None
    spare: bool = True
    time: bool = False
    sanitize: bool = False


@dataclass(frozen=True)
class Made:
    """A function that its own process makes: what `maker`, named as functions are, returns for the
    arguments."""

    maker: str
    arguments: tuple[Any, ...]


@dataclass
class Extra:
    """What else was done with a function, apart from the calls that are judged."""

    timing: Timing | None = None
    sanitized: Sanitized | None = None


_LATER = (
    *("api.trial", "recorder.central_differences", "recorder.closed_rows"),
    "recorder.own_codes",
)
"""Modules that the judge imports where it needs them, with what they import: before the function
runs, since without Landlock it may write to their files."""


class Replayed:
    """Takes the place of the function: each call returns what that call returned, and writes to its
    arguments what that wrote. `trouble` is raised where there is no such call."""

    def __init__(
        self,
        calls: Sequence[Sequence[Path]],
        trouble: SealedError | None = None,
        extra: Extra | None = None,
        again: Callable[..., Any] | None = None,
    ) -> None:
        """`again` calls the function on other arguments."""
        self._cases = calls
        self._trouble = trouble
        self.extra = extra or Extra()
        self.again = again
        self._calls = (out for case in calls for out in case)
        self._result: tuple[Path, Any] | None = None

    def of(self, first: int, last: int) -> Replayed:
        """Of the cases from `first` to before `last` alone."""
        again = self.again.of(first) if isinstance(self.again, Resealed) else self.again
        return Replayed(self._cases[first:last], self._trouble, self.extra, again)

    def missing(self, first: int, last: int) -> SealedError | None:
        """Why one of these cases has not ended; None where all have."""
        return None if all(map(_has_ended, self._cases[first:last])) else self._trouble

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_leaves

        from .travel import Packed, changed, load, source

        out = next(self._calls)
        raised = Path(f"{out}-{RAISED}")
        if os.path.lexists(raised):
            raise SealedError(f"raised {words_in(raised)}")
        mine = Packed((args, kwargs), "the arguments", gradients=False)
        try:
            structure, storages = changed(Path(f"{out}-after"))
            if structure != mine.text:
                raise SealedError("changed the structure of its arguments")
            with torch.no_grad():
                for i, content in storages:
                    mine.bytes_of(i).copy_(content)
            if self._result is None or self._result[0] != source(out):
                self._result = source(out), load(source(out))
        except (FormatError, ValueError, IndexError, RuntimeError) as error:
            raise SealedError(f"left no results that can be read: {error}") from None
        result = self._result[1]
        for it in tree_leaves(result):
            if isinstance(it, torch.Tensor):
                _require_size(it)
        return result


def _has_ended(case: Sequence[Path]) -> bool:
    raised = any(os.path.lexists(f"{out}-{RAISED}") for out in case)
    return raised or all(Path(f"{out}-after.json").is_file() for out in case)


def _require_size(t: torch.Tensor) -> None:
    """One element may be repeated, but not until there is no memory for a copy."""
    size = t.numel() * t.itemsize
    if size > max(t.untyped_storage().nbytes(), MOST_REPEATED):
        raise SealedError(
            f"returned {t.untyped_storage().nbytes()} bytes as a tensor of {list(t.shape)}, which "
            f"would be {size / 2**30:.4g} GiB"
        )


class Resealed:
    """Calls a function in a process of its own each time, once its verdict is known."""

    def __init__(
        self,
        function: Callable[..., Any] | str | Made,
        how: Sealed,
        arrays: Any,
        gradients: Sequence[Asked],
    ) -> None:
        self._function, self._arrays, self._gradients = function, arrays, gradients
        self._how = replace(how, time=False, sanitize=False)

    def of(self, case: int) -> Resealed:
        """From this case on."""
        return Resealed(self._function, self._how, self._arrays, self._gradients[case:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with run_sealed(
            self._function,
            [(args, kwargs)],
            self._how,
            arrays=self._arrays,
            repeat=1,
            gradients=self._gradients[:1],
        ) as replayed:
            return replayed(*args, **kwargs)


@dataclass(frozen=True)
class Timed:
    """What a function is timed with: `like`, and other values of its first case."""

    like: Callable[..., Any]
    judged: Arguments
    """A case of their own, as check() takes it."""
    given: Arguments
    """With weights."""


@contextmanager
def run_sealed(
    function: Callable[..., Any] | str | Made,
    cases: Sequence[Arguments],
    how: Sealed,
    *,
    arrays: str | Callable[[Any], Any],
    repeat: int,
    partly: bool = False,
    timed: Timed | None = None,
    timed_at: int | None = None,
    may_raise: Collection[int] = (),
    gradients: Sequence[Asked] = (),
) -> Iterator[Replayed]:
    """Calls the function `repeat` times on each case, in a process of its own that has ended when
    this gives its results. Raises SealedError with what it did instead, UsageError where function
    or arguments do not reach another process. `partly`: gives what had ended before that error.
    `timed`: it is timed then and called once more; one more case, of as many calls, has been called
    while it was timed, and is in the place `timed_at`, by default the last. What cases that
    `may_raise` raised is raised here when their results are asked for. With `gradients`, one for
    each case, it runs forward and backward there, and cases have cotangents."""
    from .timing import OUT, Timer
    from .travel import Packed, TravelError

    if not isinstance(arrays, str):
        raise UsageError("sealed: arrays is a function, which does not travel; name a library")
    job = {
        "function": name_of(function.maker if isinstance(function, Made) else function),
        "made": isinstance(function, Made), "cases": len(cases), "repeat": repeat,
        "arrays": arrays, "path": sys.path, "threads": _threads(), "device": _device(cases),
        "timed": timed is not None, "control": "", "may_raise": list(may_raise),
        "gradients": bool(gradients),
    }  # fmt: skip
    given = [(f"in-{i}", it) for i, it in enumerate(cases)]
    given += [("made", (function.arguments, {}))] if isinstance(function, Made) else []
    given += [("timed", timed.given)] if timed else []
    given += [(f"gradients-{i}", (it.packed(), {})) for i, it in enumerate(gradients)]
    bounds, extra, trouble = Bounds(how.timeout, how.memory), Extra(), None
    for name in _LATER:
        import_module(f"..{name}", __package__)
    with worker_process.worker(spare=how.spare, on_gpu=job["device"] != "cpu") as worker:

        def give(folder: Path) -> None:
            for name, arguments in given:
                try:
                    Packed(arguments, "arguments").save(folder / name)
                except TravelError as error:
                    raise UsageError(f"sealed: {error}") from None

        give(worker.folder)
        timer = Timer(timed.like, cases[0], repeat + 1) if timed else None
        try:
            worker.run(job, bounds, timer.talk if timer else None)
            if how.sanitize:
                extra.sanitized = sanitized(job, give, bounds)
        except SealedError as error:
            if not partly:
                raise
            trouble = error
        calls = range(repeat + (timed is not None))
        outs = [[worker.folder / f"out-{i}-{call}" for call in calls] for i in range(len(cases))]
        if timer:
            extra.timing = timer.timing
            at = len(outs) if timed_at is None else timed_at
            outs.insert(at, [worker.folder / f"{OUT}-{i}" for i in calls])
        yield Replayed(outs, trouble, extra, Resealed(function, how, arrays, gradients))


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _device(cases: Sequence[Arguments]) -> str:
    """Where the first tensor is."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = (it for it in tree_leaves(list(cases)) if isinstance(it, torch.Tensor))
    return next((str(it.device) for it in tensors), "cpu")


def name_of(function: Callable[..., Any] | str) -> str:
    """What another process finds the function by; UsageError where it cannot."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", "<")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if "<" in name or module is None:
        raise UsageError(
            f"sealed: another process cannot import {function!r}: take a function of a module, or "
            'name it, "FILE.py:NAME"'
        )
    if module.__name__ == "__main__" or getattr(module, "__spec__", None) is None:
        return f"{inspect.getfile(function)}:{name}"
    return f"{module.__name__}:{name}"
