"""check(sealed=Sealed(time=True)): a sealed function, `like` and torch.compile(like) are timed
alternating, each on the calls that are judged, and the figures are held to this process's clock.
"""

from __future__ import annotations

import copy
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import torch

from ..errors import NO_GRADIENT
from . import timed
from .hardware import Limits
from .travel import Packed
from .worker_process import SealedError, Worker

BATCH = 0.1
"""Seconds of this process's clock in a round, at least."""
ROUNDS = 5
AGREE = 0.1
"""How far the sum of figures may be off this process's clock."""
MOST_CALLS, TRIED = 2048, 8
MOST_BYTES = {"cpu": 1 << 29}
"""Of copies of the arguments; on other devices eight times as many."""
OUT = "timed-out"
"""The files of a sampled call, before the number of its round."""
NAMES = {"candidate": "", "like": "like ", "compiled": "torch.compile(like) "}


@dataclass(frozen=True)
class Speed:
    """Seconds of a call: the median of rounds, and the fastest and slowest round."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_seconds(self.median)} ({_seconds(self.low)} to {_seconds(self.high)})"


@dataclass(frozen=True)
class Timing:
    """Of a function and its rivals, by name; `why` has what could not be timed."""

    speeds: Mapping[str, Speed]
    why: Mapping[str, str]
    calls: int
    disagrees: str = ""
    """How the figures differ from this process's clock."""
    impossible: str = ""
    """Which limit of the hardware the figures exceed."""

    def __str__(self) -> str:
        said = [f"{NAMES[name]}{speed}" for name, speed in self.speeds.items()]
        said += [f"{NAMES[name]}{why}" for name, why in self.why.items()]
        return ", ".join(said) + (f"; impossible: {self.impossible}" if self.impossible else "")

    def to_json(self) -> dict[str, Any]:
        """Microseconds, four digits."""
        speeds = {
            name: [float(f"{n * 1e6:.4g}") for n in (it.median, it.low, it.high)]
            for name, it in self.speeds.items()
        }
        return {
            "microseconds": speeds, "calls": self.calls, "impossible": self.impossible,
            "why": {name: why[:80] for name, why in self.why.items()},
        }  # fmt: skip


class Timed(Protocol):
    """A function that is called in batches, here or in another process."""

    def ready(self, calls: int, sample: int = -1) -> None: ...
    def go(self, out: str = "") -> None: ...
    def seconds(self) -> list[float]: ...


class Remote:
    """In the worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def begin(self, cache: int) -> None:
        """With a cache of so many bytes to be emptied."""
        self._said("made", cache=cache)

    def ready(self, calls: int, sample: int = -1) -> None:
        self._said("ready", do="ready", calls=calls, sample=sample)

    def go(self, out: str = "") -> None:
        self._said("ended", do="go", out=out)

    def _said(self, expected: str, **question: Any) -> None:
        answer = self._worker.ask(**question)
        if answer != expected:
            raise SealedError(f"wrote {str(answer)[:80]!r} among the answers of its process")

    def seconds(self) -> list[float]:
        answer = self._worker.ask(do="seconds")
        good = isinstance(answer, list) and all(type(it) is float and it >= 0 for it in answer)
        if not good or not answer or not all(map(math.isfinite, answer)):
            raise SealedError(f"wrote {str(answer)[:80]!r} among the times of its process")
        return answer


class Local:
    """`like`, in this process."""

    def __init__(self, runner: timed.Runner, *, grad: bool) -> None:
        self._runner, self._grad = runner, grad

    def ready(self, calls: int, sample: int = -1) -> None:
        with torch.no_grad():
            self._runner.ready(calls)

    def go(self, out: str = "") -> None:
        with torch.set_grad_enabled(self._grad):
            self._runner.go()

    def seconds(self) -> list[float]:
        return self._runner.seconds()


@dataclass
class Round:
    """Of all its calls, and by this process's clock from one end to the other."""

    seconds: list[float]
    wall: float

    @property
    def ratio(self) -> float:
        return sum(self.seconds) / self.wall


class Timer:
    """Times the worker's function next to `like`, called on `arguments`."""

    def __init__(self, like: Callable[..., Any], arguments: Any, rounds: int) -> None:
        self._like, self._arguments, self._rounds = like, arguments, max(ROUNDS, rounds)
        self._why: dict[str, str] = {}
        storages = Packed(arguments, "the arguments").storages
        self._device = storages[0].device if storages else torch.device("cpu")
        self._bytes = max(1, sum(it.nbytes() for it in storages))
        self._cache = timed.cache_bytes(self._device)
        self.timing: Timing | None = None

    def talk(self, worker: Worker) -> None:
        """Asks a worker whose calls have ended."""
        remote = Remote(worker)
        remote.begin(self._cache)
        with worker.paused():
            rivals = self._rivals()
            like = copy.deepcopy(self._like)
            limits = Limits.of(like, self._arguments) if "like" in rivals else Limits()
        every: dict[str, Timed] = {"candidate": remote, **rivals}
        calls: dict[str, int] = {}
        for name, it in every.items():
            with _apart(worker, it):
                calls[name] = self._calls(it)
        rounds: dict[str, list[Round]] = {name: [] for name in every}
        for i in range(self._rounds):
            for name, it in every.items():
                with _apart(worker, it):
                    rounds[name].append(_round(it, calls[name], f"{OUT}-{i}"))
        self.timing = self._concluded(rounds, calls["candidate"], limits)

    def _rivals(self) -> dict[str, Timed]:
        found: dict[str, Timed] = {}
        for name, compiled in (("like", False), ("compiled", True)):
            try:
                like = copy.deepcopy(self._like)
                like = torch.compile(like) if compiled else like
                found[name] = _local(like, self._arguments, self._device, self._cache)
            except Exception as error:
                words = f"{type(error).__name__}: {error}".partition("\n")[0]
                self._why[name] = f"cannot be timed: {words[:200]}"
        return found

    def _calls(self, it: Timed) -> int:
        """Of a batch of BATCH seconds, or as many as there is memory for."""
        most = MOST_BYTES.get(self._device.type, 8 * MOST_BYTES["cpu"])
        most = max(1, min(MOST_CALLS, most // self._bytes))
        it.ready(min(TRIED, most))
        begin = time.perf_counter()
        it.go()
        one = (time.perf_counter() - begin) / min(TRIED, most)
        it.seconds()
        return max(1, min(most, math.ceil(1.2 * BATCH / max(one, 1e-7))))

    def _concluded(self, rounds: Mapping[str, list[Round]], calls: int, limits: Limits) -> Timing:
        speeds = {name: _speed(of) for name, of in rounds.items()}
        own = sorted(rounds["candidate"], key=lambda it: it.ratio)[self._rounds // 2]
        disagrees = ""
        if not 1 - AGREE <= own.ratio <= 1 / (1 - AGREE):
            disagrees = (
                f"{len(own.seconds)} calls took {_seconds(sum(own.seconds))} by the clock in its "
                f"process, {_seconds(own.wall)} by the judge's"
            )
        impossible = limits.exceeded(speeds["candidate"].median)
        return Timing(speeds, self._why, calls, disagrees, impossible)


@contextmanager
def _apart(worker: Worker, it: Timed) -> Iterator[None]:
    """Inside, nothing of the worker runs while others are timed."""
    if isinstance(it, Remote):
        yield
        return
    with worker.paused():
        yield


def _local(like: Callable[..., Any], arguments: Any, device: torch.device, cache: int) -> Local:
    """Called once, so that all that is compiled is."""
    for grad in (False, True):
        args, kwargs = timed.scaled(arguments, 1.0)
        try:
            with torch.set_grad_enabled(grad):
                like(*args, **kwargs)
            break
        except RuntimeError as error:
            if grad or NO_GRADIENT not in str(error):
                raise
    return Local(timed.Runner(like, arguments, timed.Clock(str(device)), cache), grad=grad)


def _round(it: Timed, calls: int, out: str) -> Round:
    """Batches until there are BATCH seconds of this process's clock; a call of the first one is
    sampled."""
    made = Round([], 0.0)
    while made.wall < BATCH:
        it.ready(calls, secrets.randbelow(calls) if not made.seconds else -1)
        begin = time.perf_counter()
        it.go("" if made.seconds else out)
        made.wall += time.perf_counter() - begin
        made.seconds += it.seconds()
    return made


def _speed(rounds: list[Round]) -> Speed:
    figures = [median(it.seconds) for it in rounds]
    return Speed(median(figures), min(figures), max(figures))


def _seconds(number: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number * 1e9:.3g} ns"
