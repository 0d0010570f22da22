"""python -m tests.panel.checks: how often check() is wrong, both ways, counted on a new seed.

Right kernels of unusual arithmetic, torch's operations against themselves, wrong kernels: a line
for each wrong answer, a table, and exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from python_inspector import check
from python_inspector.api.verdict import WrongError
from tests.panel.operations import KINDS, NARROW, OPERATIONS, maker
from tests.panel.right_kernels import right_kernels
from tests.panel.wrong_kernels import wrong_kernels

DTYPES = (torch.float32, *NARROW)


@dataclass(frozen=True)
class Trial:
    name: str
    wrong: bool
    kernel: Callable[..., Any]
    like: Callable[..., Any]
    inputs: tuple[Any, ...]


def themselves(seed: int) -> Iterator[Trial]:
    """Each operation, kind of operands and dtype: the operation itself is right."""
    for operation in OPERATIONS:
        for kind in KINDS:
            for dtype in DTYPES:
                make = maker(kind, dtype, seed)
                name = f"{operation.name}, {kind}, {_name(dtype)}"
                function = operation.function
                yield Trial(name, False, function, function, operation.operands(make))


def kernels(made: Iterator[Any], seed: int, *, wrong: bool) -> Iterator[Trial]:
    for case in made:
        for dtype in DTYPES:
            make = maker("ordinary", dtype, seed)
            inputs = [make(*shape) for shape in case.shapes]
            inputs[0] = (inputs[0].double() * case.spread).to(dtype)
            for i, shape in enumerate(case.shapes[1:], 1):
                if len(shape) == 1:  # a norm's weight
                    inputs[i] = (1 + 0.3 * inputs[i].double()).to(dtype)
            yield Trial(
                f"{case.name}, {_name(dtype)}", wrong, case.kernel, case.like, tuple(inputs)
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


SUITES: dict[str, Callable[[int], Iterator[Trial]]] = {
    "right kernels": lambda seed: kernels(right_kernels(), seed, wrong=False),
    "operations themselves": themselves,
    "wrong kernels": lambda seed: kernels(wrong_kernels(), seed, wrong=True),
}


def answer(trial: Trial) -> str:
    """pass, blind, fail ...; error: check() raised something else."""
    try:
        return check(trial.kernel, like=trial.like, inputs=trial.inputs).status
    except WrongError as wrong:
        return wrong.verdict.status
    except Exception as error:
        text = str(error).splitlines() or [""]
        return f"error: {type(error).__name__}: {text[0][:100]}"


def is_wrong(trial: Trial, said: str) -> bool:
    if said.startswith("error"):
        return True
    return said == "pass" if trial.wrong else said not in ("pass", "blind")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.panel.checks", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the operands (1)")
    parser.add_argument("--suite", choices=SUITES, nargs="+", default=list(SUITES))
    parser.add_argument("--part", default="0/1", help="I/N: every Nth trial, beginning with I")
    parser.add_argument("--only", default="", help="trials whose name has this in it")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    first, step = map(int, options.part.split("/"))
    lines, found = [], False
    for suite in options.suite:
        said: Counter[str] = Counter()
        for at, trial in enumerate(SUITES[suite](options.seed)):
            if at % step != first or options.only not in trial.name:
                continue
            status = answer(trial)
            wrong = is_wrong(trial, status)
            said["error" if status.startswith("error") else status] += 1
            said["wrongly"] += wrong
            if wrong:
                print(f"{suite}: {trial.name}: {status}", flush=True)
        wrongly, judged = said.pop("wrongly", 0), sum(said.values())
        found = found or wrongly > 0
        kinds = ", ".join(f"{n} {status}" for status, n in sorted(said.items()))
        lines.append(f"{suite:22} {judged:6} judged, {wrongly:4} wrongly: {kinds}")
    print("\n".join(lines))
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
