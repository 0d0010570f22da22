"""check(sealed=...): the function runs in a process of its own, which has ended before the
reference, the oracle and the limits are computed, and leaves its results as files."""

from __future__ import annotations

import inspect
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import FormatError, UsageError
from ..format.folders import in_memory
from . import worker_process
from .worker_process import Bounds, SealedError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Sealed:
    """How a sealed function runs: the seconds that all of its calls may take, and the bytes of
    memory of its processes, by default nine tenths of what is free. `spare`: afterwards a process
    for the next verdict is started, whose imports are done by then."""

    timeout: float = 60.0
    memory: int | None = None
    spare: bool = True


@dataclass(frozen=True)
class Made:
    """A function that its own process makes: what `maker`, named as functions are, returns for the
    arguments."""

    maker: str
    arguments: tuple[Any, ...]


class Replayed:
    """Takes the place of the function: each call returns what that call returned, and writes to its
    arguments what that wrote. `trouble` is raised where there is no such call."""

    def __init__(self, calls: Sequence[Sequence[Path]], trouble: SealedError | None = None) -> None:
        self._cases = calls
        self._trouble = trouble
        self._calls = (out for case in calls for out in case)

    def of(self, first: int, last: int) -> Replayed:
        """Of the cases from `first` to before `last` alone."""
        return Replayed(self._cases[first:last], self._trouble)

    def missing(self, first: int, last: int) -> SealedError | None:
        """Why one of these cases has not ended; None where all have."""
        outs = [out for case in self._cases[first:last] for out in case]
        ended = all(Path(f"{out}-after.json").is_file() for out in outs)
        return None if ended else self._trouble

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        from .travel import Packed, load

        out = next(self._calls)
        after = _read(Path(f"{out}-after"), load)
        now, mine = (Packed(it, "the arguments", gradients=False) for it in (after, (args, kwargs)))
        if now.text != mine.text:
            raise SealedError("changed the structure of its arguments")
        with torch.no_grad():
            for i in range(len(mine.storages)):
                mine.bytes_of(i).copy_(now.bytes_of(i))
        return _read(out, load)


def _read(stem: Path, load: Callable[[Path], Any]) -> Any:
    try:
        return load(stem)
    except FormatError as error:
        raise SealedError(f"left no results that can be read: {error}") from None


@contextmanager
def run_sealed(
    function: Callable[..., Any] | str | Made,
    cases: Sequence[Arguments],
    how: Sealed,
    *,
    arrays: str | Callable[[Any], Any],
    repeat: int,
    partly: bool = False,
) -> Iterator[Replayed]:
    """Calls the function `repeat` times on each case, in a process of its own that has ended when
    this gives its results. Raises SealedError with what it did instead, UsageError where function
    or arguments do not reach another process. `partly`: gives what had ended before that error."""
    from .travel import Packed, TravelError

    if not isinstance(arrays, str):
        raise UsageError("sealed: arrays is a function, which does not travel; name a library")
    job = {
        "function": name_of(function.maker if isinstance(function, Made) else function),
        "made": isinstance(function, Made), "cases": len(cases), "repeat": repeat,
        "arrays": arrays, "path": sys.path,
    }  # fmt: skip
    given = [(f"in-{i}", it) for i, it in enumerate(cases)]
    given += [("made", (function.arguments, {}))] if isinstance(function, Made) else []
    folder = Path(tempfile.mkdtemp(prefix="plumbline-sealed-", dir=in_memory()))
    try:
        for name, arguments in given:
            try:
                Packed(arguments, "arguments").save(folder / name)
            except TravelError as error:
                raise UsageError(f"sealed: {error}") from None
        bounds = Bounds(how.timeout, how.memory)
        trouble = None
        try:
            worker_process.run({**job, "folder": str(folder)}, folder, bounds, spare=how.spare)
        except SealedError as error:
            if not partly:
                raise
            trouble = error
        calls = [[folder / f"out-{i}-{call}" for call in range(repeat)] for i in range(len(cases))]
        yield Replayed(calls, trouble)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
