"""What every form comes to: torch code, the sets of inputs that it is called with, a candidate."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..api.backward import with_cotangents
from ..api.calling import OutputTypeError
from ..api.checking import (
    MOST_SALT,
    TIMED,
    check,
    load_the_judge,
    timed_with,
    with_extra,
)
from ..api.hard import flattened, hard_cases, kinds_of
from ..api.inputs import Called, Case, cases_of, draws_of
from ..api.keeping import require_place
from ..api.sealed import Made, Replayed, Sealed, run_sealed
from ..api.travel import Packed, TravelError
from ..api.verdict import Verdict, WrongError
from ..api.worker_process import SealedError
from ..errors import RecordError, UsageError
from ..recorder.callables import Torch, name_of
from ..recorder.kernel_gradients import Asked

OWN, HARD = "own", "hard"
REPEAT = 2
GOOD = ("pass", "blind", "unsupported")
NARROW = re.compile(r'output "[^"]*" (is \w+, the recording has|holds) ')
"""What the judge says of an output in a dtype that holds less."""
OTHER = re.compile(r"output is (\S+) (\[.*?\]), expected (\S+) (\[.*?\])")
"""What it says of another dtype or shape."""


@dataclass(frozen=True)
class Stated:
    """A problem and a candidate for it; without one `like` is judged by itself."""

    like: Torch
    inputs: Mapping[str, Any]
    """By name, as check() takes them."""
    candidate: str | Made | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    """Inputs that cannot be judged, and why."""


def judged(
    stated: Stated,
    sealed: Sealed,
    salt: int | None = None,
    *,
    explain: bool | float = True,
    hard: bool | Sequence[str] = False,
    keep: Path | None = None,
    backward: bool = False,
) -> dict[str, Verdict]:
    """By name of the inputs the verdict on the candidate, which runs in a process of its own. What
    cannot be judged is "unsupported"; where that process ends early, its last verdict says why.
    `explain`, `hard`, `keep` and `backward` are check()'s: hard cases are made of each set of
    inputs, the folder has the first set that is wrong, or the last one."""
    if backward and sealed.time:
        raise UsageError("--backward and --time do not go together: leave one of them out")
    load_the_judge()
    if keep is not None:
        require_place(keep)
    salt = secrets.randbelow(MOST_SALT) if salt is None else salt
    said = {name: _without(stated, "unsupported", why) for name, why in stated.refused.items()}

    def says(kernel: Any, inputs: Any, repeat: int = REPEAT, **other: Any) -> Verdict:
        options = {
            "explain": explain,
            "hard": hard,
            "repeat": repeat,
            "backward": backward,
            **other,
        }
        place = keep if status_of(said) in GOOD else None
        return checked(kernel, stated, inputs, salt, keep=place, **options)

    if stated.candidate is None:
        if sealed.time or sealed.sanitize:
            raise UsageError("--time, --sanitize: torch by itself is in no process of its own")
        for name, inputs in stated.inputs.items():
            said[name] = says(stated.like, inputs)
        return said
    cases: dict[str, list[Case]] = {}
    every: list[Case] = []
    may_raise: list[int] = []
    asked: list[Asked] = []
    for name, inputs in stated.inputs.items():
        try:
            own, made, gradients = _cases(stated, inputs, salt, hard, backward=backward)
        except (TravelError, RecordError) as error:
            said[name] = _without(stated, "unsupported", str(error))
            continue
        may_raise += range(len(every) + own, len(every) + len(made))
        asked += gradients
        cases[name], every = made, every + made
    timed = timed_with(stated.like, every[0]) if sealed.time and every else None
    repeat = REPEAT + (timed is not None)
    with run_sealed(
        stated.candidate, [it.arguments for it in every], sealed, arrays="torch", repeat=REPEAT,
        partly=True, timed=timed, may_raise=may_raise, gradients=asked,
    ) as replayed:  # fmt: skip
        last = 0
        for name, made in cases.items():
            first, last = last, last + len(made)
            inputs = stated.inputs[name]
            if trouble := replayed.missing(first, last):
                said[name] = _troubled(stated, inputs, salt, f"the candidate {trouble}")
                break
            said[name] = says(replayed.of(first, last), inputs, repeat)
        else:
            if timed:
                inputs = Called(*timed.judged)
                said[TIMED] = says(replayed.of(last, last + 1), inputs, repeat, hard=False)
            untimed = replace(replayed.extra, timing=None)
            for name, verdict in said.items():
                said[name] = with_extra(verdict, replayed.extra if name == TIMED else untimed)
    return said


def _cases(
    stated: Stated, inputs: Any, salt: int, hard: bool | Sequence[str], *, backward: bool
) -> tuple[int, list[Case], list[Asked]]:
    """How many cases a set of inputs is, these and the hard ones, and what gradients are asked of
    each."""
    own, asked = list(cases_of(inputs, salt)), []
    if backward:
        gradients, own = with_cotangents(stated.like, own, salt)
        asked = [gradients.asked]
    made = list(flattened(own, hard_cases(own[0], kinds_of(hard))))
    Packed([it.arguments for it in made], "arguments")
    return len(own), made, asked * len(made)


def _troubled(stated: Stated, inputs: Any, salt: int, trouble: str) -> Verdict:
    """A candidate may raise where `like` does, also on copies of its operands: what is between the
    elements of a view is not theirs."""
    for case in cases_of(inputs, salt):
        calls = deepcopy(case.arguments), tree_map(_copy, case.arguments)
        try:
            with torch.no_grad():
                for args, kwargs in calls:
                    stated.like(*args, **kwargs)
        except Exception as error:
            told = f"the reference raises {type(error).__name__}: {error}"
            return _without(stated, "unsupported", "; ".join(filter(None, (told, trouble))))
    return _without(stated, "error", trouble)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _without(stated: Stated, status: str, reason: str) -> Verdict:
    """Where nothing could be compared."""
    return Verdict(name_of(stated.like), "module", status, reason, {})


def checked(
    kernel: Torch | Replayed, stated: Stated, inputs: Any, salt: int, **options: Any
) -> Verdict:
    """Of what is called in this process, or was called in another one. `options` are check()'s."""
    try:
        verdict = check(kernel, stated.like, inputs, salt=salt, **options)
    except WrongError as error:
        verdict = error.verdict
    except SealedError as error:
        verdict = _without(stated, "error", f"the candidate {error}")
    except OutputTypeError as error:
        verdict = _without(stated, "error", str(error))
    except RecordError as error:
        verdict = _without(stated, "unsupported", str(error))
    except Exception:
        verdict = _troubled(stated, inputs, salt, "")
        if verdict.status != "unsupported":
            raise
    if verdict.status == "bad_input" and NARROW.search(verdict.reason):
        verdict = replace(verdict, status="fail")
    return replace(verdict, salt=salt) if draws_of(inputs) else verdict


def status_of(verdicts: Mapping[str, Verdict]) -> str:
    """Of a candidate: wrong if it is wrong on any inputs, right if any proves it."""
    every = [verdict.status for verdict in verdicts.values()]
    wrong = [status for status in every if status not in GOOD]
    return wrong[0] if wrong else next((it for it in GOOD if it in every), "unsupported")


def trouble_of(verdict: Verdict) -> str:
    """What is wrong: timeout, error, shape, dtype or numbers; empty of what passes."""
    if verdict.passed:
        return ""
    if verdict.status == "error":
        return "timeout" if "did not end within" in verdict.reason else "error"
    if other := OTHER.search(verdict.reason):
        return "shape" if other[2] != other[4] else "dtype"
    return "dtype" if NARROW.search(verdict.reason) else "numbers"


def largest_error(verdict: Verdict) -> float:
    """Relative to its element's scale; NaN where none was measured."""
    outputs = verdict.figures.get("outputs", ())
    found = [float(it["statistics"]["M_E"]) for it in outputs if it.get("statistics")]
    return max(found, default=math.nan)
