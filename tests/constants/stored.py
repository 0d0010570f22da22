"""What check() is asked of the kernels of the corpus: recordings, and what kernels returned.

A folder has a recording for each problem, dtype and kind of operands, with the other ways to round
that check() looks for where a kernel fails, so that the judge's first answer is the last one; the
outputs of all kernels, which never run again; and index.jsonl, which says what each has to be.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from python_inspector import prepare
from python_inspector.api.calling import Kernel as Called
from python_inspector.api.case_files import by_key
from python_inspector.api.prepared import Recorded
from python_inspector.format.operands import save
from python_inspector.recorder.explanation import alternatives
from python_inspector.trace.trials import Deadline
from tests.corpus.catalogue import kernels
from tests.corpus.measured import NOT_WRONG as NOT_WRONG
from tests.corpus.rows import DTYPES, Kernel, Values
from tests.panel.checks import themselves

INDEX = "index.jsonl"
RECORDING = "recording"


@dataclass(frozen=True)
class Stored:
    """The outputs of one kernel on one kind of operands; places in the folder."""

    kernel: str
    """With its dtype."""
    wrong: bool
    recording: str
    outputs: str


def read(folder: Path) -> list[Stored]:
    return [Stored(**json.loads(line)) for line in (folder / INDEX).read_text().splitlines()]


def store(folder: Path, step: tuple[int, int], seed: int = 0) -> str:
    """Writes outputs of the corpus, and of torch's operations, to an empty folder; says how
    many. `step`: one in so many problems of the corpus, and operations."""
    folder.mkdir(parents=True)
    count, left = 0, 0
    with (folder / INDEX).open("w") as index, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, case in cases(step, seed):
            case.save(folder / place)
            for at, kernel in enumerate(case.kernels):
                outputs = f"{place}/{at}.safetensors"
                if not case.run(kernel.function, folder / outputs):
                    left += 1
                    continue
                count += 1
                it = Stored(kernel.name, kernel.wrong, f"{place}/{RECORDING}", outputs)
                index.write(json.dumps(asdict(it)) + "\n")
    return f"{count} outputs stored; {left} calls have none that the judge decides on"


@dataclass(frozen=True)
class _Kernel:
    name: str
    wrong: bool
    function: Callable[..., Any]


def cases(step: tuple[int, int], seed: int = 0) -> Iterator[tuple[str, Case]]:
    """The calls of a reference, by names of folders, and the kernels that are judged on each."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    of_corpus, of_operations = step
    for rows, dtype in [*_problems()][::of_corpus]:
        problem = rows[0].problem
        tried = [
            _Kernel(f"{it.name}, {dtype}", bool(it.fault), it.fresh())
            for it in rows
            if dtype in it.dtypes
        ]
        for i, kind in enumerate(problem.kinds):
            operands = problem.of(Values(kind, DTYPES[dtype], seed=seed + i))
            yield _folder(f"{problem.name}, {dtype}, {kind}"), Case(problem.like, operands, tried)
    for trial in [*themselves(seed)][::of_operations]:
        tried = [_Kernel(trial.name, trial.wrong, trial.kernel)]
        yield _folder(trial.name), Case(trial.like, trial.cases[0], tried)


def _folder(name: str) -> str:
    """Not by its place: problems are added before others."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


def _problems() -> Iterator[tuple[list[Kernel], str]]:
    for rows in kernels().values():
        for dtype in rows[0].problem.dtypes:
            yield rows, dtype


@dataclass
class Case:
    """A call of a reference, and kernels that are judged by it."""

    like: Callable[..., Any]
    operands: tuple[Any, ...]
    kernels: Sequence[_Kernel]
    _call: Recorded | None = None

    def save(self, folder: Path) -> None:
        """Records it."""
        with torch.no_grad():
            prepared = prepare(self.like, self.operands, explain=False)
            (self._call,) = prepared.cases
            kept = self._call.kept
            judgement = alternatives(kept, {}, Deadline(None), most=0)
            explained = None if judgement is None else [(kept, judgement)]
            prepared._recording.save(folder / RECORDING, explained)

    def run(self, function: Callable[..., Any], file: Path) -> bool:
        """Whether what a kernel gives is a matter of figures alone; then it is in the file."""
        assert self._call is not None
        try:
            with torch.no_grad():
                kept = self._call.kept
                calls = Called(function, "torch", 2).call(kept.observed, self._call.case)
        except Exception:  # what a kernel raises is its verdict
            return False
        if calls.faults or calls.unstable or not calls.first.outputs:
            return False
        save(by_key({kept.checkpoint.id: calls.first.outputs}), file)
        return True


if __name__ == "__main__":
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    print(store(Path(sys.argv[1]), (1, 1)))
