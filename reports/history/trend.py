"""How accuracy went over commits, block by block.

Errors of different checkpoints differ by orders of magnitude, and checkpoints come and go, so a
block's course is a chained index as of prices: from each commit to the next it moves by the
geometric mean of the ratios of E_T, over what is comparable in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..results import NO_FAILURES
from .figures import Key
from .store import Error, Store, Stored


@dataclass
class Course:
    """One block; every list has an entry per commit, and the first commit's error is 1."""

    mean: list[float] = field(default_factory=list)  # NaN before the block appears
    worst: list[float] = field(default_factory=list)  # of its checkpoints
    failed: list[int] = field(default_factory=list)  # checkpoints


@dataclass(frozen=True)
class Courses:
    """All blocks on one device."""

    device: str
    commits: list[str]
    blocks: dict[str, Course]


def follow(store: Store, device: str = "", blocks: set[str] | None = None) -> Courses:
    """The courses of some blocks (all) on a device (the only one).

    Of a commit the run that was added last counts. Raises ValueError where nothing is left.
    """
    stored = store.runs()
    device = device or _only_device(stored)
    last = {run.commit or f"#{run.id}": run for run in stored if device in _devices(run)}
    if not last:
        raise ValueError(f"{store.name}: no run on {device}; reports history list shows them")
    commits = [run.label for run in last.values()]
    errors = [store.errors(run.id, device) for run in last.values()]
    return Courses(device, commits, _courses(errors, blocks or set()))


def _devices(run: Stored) -> set[str]:
    return {words.split(": ")[0] for words in run.devices}


def _only_device(stored: list[Stored]) -> str:
    devices = sorted(set().union(*map(_devices, stored)))
    if len(devices) != 1:
        raise ValueError(f"name one of the devices with --device: {', '.join(devices) or 'none'}")
    return devices[0]


def _courses(errors: list[dict[Key, Error]], wanted: set[str]) -> dict[str, Course]:
    names = sorted({error.block for run in errors for error in run.values()})
    courses = {name: Course() for name in names if not wanted or name in wanted}
    if not courses:
        raise ValueError(f"no block of {', '.join(sorted(wanted))}: there are {', '.join(names)}")
    levels: dict[Key, float] = {}
    before: dict[Key, Error] = {}
    for run in errors:
        levels = {key: levels.get(key, 1.0) * _ratio(before.get(key), run[key]) for key in run}
        for name, course in courses.items():
            _append(course, [key for key in run if run[key].block == name], levels, before, run)
        before = run
    return courses


def _ratio(before: Error | None, now: Error) -> float:
    """What the error grew by; 1 where that cannot be said."""
    if before is None or before.basis != now.basis or not (before.value > 0 and now.value > 0):
        return 1.0
    ratio = now.value / before.value
    return ratio if math.isfinite(ratio) and ratio > 0 else 1.0


def _append(
    course: Course,
    keys: list[Key],
    levels: dict[Key, float],
    before: dict[Key, Error],
    now: dict[Key, Error],
) -> None:
    if not keys:
        course.mean.append(course.mean[-1] if course.mean else math.nan)
        course.worst.append(math.nan)
        course.failed.append(0)
        return
    known = [key for key in keys if key in before]
    step = _geometric_mean([_ratio(before[key], now[key]) for key in known])
    last = course.mean[-1] if course.mean and not math.isnan(course.mean[-1]) else 1.0
    course.mean.append(last * step)
    course.worst.append(max(levels[key] for key in keys))
    course.failed.append(sum(now[key].status not in NO_FAILURES for key in keys))


def _geometric_mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
