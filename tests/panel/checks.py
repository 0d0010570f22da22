"""python -m tests.panel.checks: how often check() is wrong, both ways, counted on a new seed.

Right kernels of unusual arithmetic, torch's operations against themselves, wrong kernels: a line
for each wrong answer, a table, and exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch

from python_inspector import check
from python_inspector.api.verdict import WrongError
from tests.corpus import rows
from tests.corpus.catalogue import kernels
from tests.panel.operations import KINDS, NARROW, OPERATIONS, maker

DTYPES = (torch.float32, *NARROW)


@dataclass(frozen=True)
class Trial:
    name: str
    wrong: bool
    kernel: Callable[..., Any]
    like: Callable[..., Any]
    cases: tuple[tuple[Any, ...], ...]
    """The operands of each call."""
    hard: bool = False


def themselves(seed: int) -> Iterator[Trial]:
    """Each operation, kind of operands and dtype: the operation itself is right."""
    for operation in OPERATIONS:
        for kind in KINDS:
            for dtype in DTYPES:
                make = maker(kind, dtype, seed)
                name = f"{operation.name}, {kind}, {_name(dtype)}"
                function = operation.function
                yield Trial(name, False, function, function, (operation.operands(make),))


def of_the_corpus(seed: int, *, wrong: bool) -> Iterator[Trial]:
    """Each kernel and dtype, on operands of all kinds of its problem."""
    os.environ["TRITON_INTERPRET"] = "1"
    for row in (row for of in kernels().values() for row in of if bool(row.fault) == wrong):
        for dtype in row.dtypes:
            drawn = (
                rows.Values(kind, rows.DTYPES[dtype], seed=100 * seed + i)
                for i, kind in enumerate(row.problem.kinds)
            )
            cases = tuple(map(row.problem.of, drawn))
            problem, name = row.problem, f"{row.name}, {dtype}"
            yield Trial(name, wrong, row.fresh(), problem.like, cases, problem.hard)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


SUITES: dict[str, Callable[[int], Iterator[Trial]]] = {
    "right kernels": lambda seed: of_the_corpus(seed, wrong=False),
    "operations themselves": themselves,
    "wrong kernels": lambda seed: of_the_corpus(seed, wrong=True),
}


def answer(trial: Trial) -> str:
    """Of the first case that is wrong, or of any that proves something: pass, blind, fail ...;
    error: check() raised something else."""
    said = []
    for inputs in trial.cases:
        try:
            verdict = check(trial.kernel, like=trial.like, inputs=inputs, hard=trial.hard)
            said.append(verdict.status)
        except WrongError as wrong:
            said.append(wrong.verdict.status)
        except Exception as error:
            text = str(error).splitlines() or [""]
            return f"error: {type(error).__name__}: {text[0][:100]}"
        if said[-1] not in ("pass", "blind"):
            return said[-1]
    return "pass" if "pass" in said else said[0]


def is_wrong(trial: Trial, said: str) -> bool:
    if said.startswith("error"):
        return True
    return said == "pass" if trial.wrong else said not in ("pass", "blind")


@dataclass(frozen=True)
class Part:
    """Every `step`th trial of a suite, beginning with `first`, of those with `only` in the name."""

    suite: str
    seed: int
    first: int
    step: int
    only: str

    def count(self) -> tuple[Counter[str], list[str]]:
        """What check() said, how often, and a line for each wrong answer."""
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        said: Counter[str] = Counter()
        lines = []
        for at, trial in enumerate(SUITES[self.suite](self.seed)):
            if at % self.step != self.first or self.only not in trial.name:
                continue
            status = answer(trial)
            said["error" if status.startswith("error") else status] += 1
            if is_wrong(trial, status):
                said["wrongly"] += 1
                lines.append(f"{self.suite}: {trial.name}: {status}")
        return said, lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.panel.checks", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the operands (1)")
    parser.add_argument("--suite", choices=SUITES, nargs="+", default=list(SUITES))
    parser.add_argument("--part", default="0/1", help="I/N: every Nth trial, beginning with I")
    parser.add_argument("--only", default="", help="trials whose name has this in it")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    options = parser.parse_args(arguments)
    first, step = map(int, options.part.split("/"))
    parts = [
        Part(suite, options.seed, first + job * step, options.jobs * step, options.only)
        for suite in options.suite
        for job in range(options.jobs)
    ]
    totals: dict[str, Counter[str]] = {suite: Counter() for suite in options.suite}
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for part, (said, lines) in zip(parts, pool.map(Part.count, parts), strict=True):
            totals[part.suite] += said
            for line in lines:
                print(line, flush=True)
    for suite, said in totals.items():
        wrongly = said["wrongly"]
        judged = said.total() - wrongly
        kinds = ", ".join(
            f"{n} {status}" for status, n in sorted(said.items()) if status != "wrongly"
        )
        print(f"{suite:22} {judged:6} judged, {wrongly:4} wrongly: {kinds}")
    return int(any(said["wrongly"] for said in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
