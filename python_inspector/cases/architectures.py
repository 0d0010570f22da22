"""`inspector architectures`: records the tiny model of every architecture and checks what came out.

Prefill and decode steps with a cache, in each dtype. A row says how many calls were recorded, how
many of them a native block replays, what was taken as given, which choices no kernel can be held
to, and whether the reference is within the limits of its own simulated kernels.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import RecordWarning, UsageError
from ..format.strict_json import load_json
from ..format.validate import RECORDING, validate
from ..models.any_tiny import configurations
from ..models.inputs import RunPlan
from ..models.tiny import FIRST_OF_TYPE
from ..recorder.where import Where
from ..taps.options import Options, Proof
from . import run
from .self_check import Checked, check

DTYPES = ("f32", "bf16")
BATCH, TOKENS, STEPS = 2, 9, 1


@dataclass
class Recorded:
    """What one recording holds."""

    checkpoints: int = 0
    native: int = 0
    """Calls that are a block of the format."""
    operations: set[str] = field(default_factory=set)
    given: int = 0
    """Kinds of operations that were taken as given."""
    undecided: int = 0
    """Outputs with elements that no kernel can be held to."""
    without: int = 0
    """Calls without an oracle or simulated kernels, where there is arithmetic."""
    outputs: int = 0
    beyond: list[Checked] = field(default_factory=list)
    """Outputs whose reference is beyond its limits."""
    problem: str = ""


@dataclass
class Row:
    """One architecture, recorded in each dtype."""

    model_type: str
    by_dtype: dict[str, Recorded]

    @property
    def problems(self) -> list[str]:
        return [f"{dtype}: {r.problem}" for dtype, r in self.by_dtype.items() if r.problem]


def main(chosen: Sequence[str], jobs: int, *, markdown: bool, listed: bool) -> bool:
    """Prints the table, or the names alone; whether every recording was valid."""
    known = names()
    if unknown := sorted(set(chosen) - set(known)):
        raise UsageError(f"no architecture {unknown[0]!r}; `inspector architectures --list`")
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}, expected at least 1")
    if listed:
        print("\n".join(known))
        return True
    rows: list[Row] = []
    for line in (as_markdown if markdown else table)(survey(chosen or known, jobs), rows):
        print(line, flush=True)
    return not any(row.problems for row in rows)


def names() -> list[str]:
    return sorted({*FIRST_OF_TYPE, *configurations()})


def survey(model_types: Sequence[str], jobs: int = 1) -> Iterator[Row]:
    """Records and checks each in a temporary folder, `jobs` of them at once."""
    if jobs == 1:
        yield from map(_row, model_types)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(1,)) as p:
        yield from p.map(_row, model_types)


def _row(model_type: str) -> Row:
    return Row(model_type, {dtype: _recorded(model_type, dtype) for dtype in DTYPES})


def _recorded(model_type: str, dtype: str) -> Recorded:
    with tempfile.TemporaryDirectory(prefix="architectures-") as folder:
        out = Path(folder) / model_type / dtype
        try:
            record_tiny(model_type, dtype, out)
        except Exception as error:
            return Recorded(problem=f"{type(error).__name__}: {str(error).splitlines()[0]}")
        return read(out)


def record_tiny(model_type: str, dtype: str, out: Path) -> None:
    """A prefill and a decode step of the architecture's tiny model."""
    source = run.Source(f"{run.TINY}{FIRST_OF_TYPE.get(model_type, model_type)}", dtype)
    model = run.load_model(source)
    ids = run.random_run_ids(source, model, BATCH, TOKENS + STEPS)
    plan = RunPlan(ids, TOKENS, STEPS, cache="dynamic")
    command = f"inspector architectures {model_type} --dtype {dtype}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordWarning)
        asked = Options(proof=Proof(bugs=False))
        run.record_run(model, source, plan, asked, Where(out, command=command))


def read(folder: Path) -> Recorded:
    """What a recording holds, validated and checked."""
    findings = validate(folder)
    recording = load_json(folder / RECORDING)
    said = recording["provenance"]["warnings"]
    checkpoints = recording["checkpoints"]
    traces = recording.get("traces", {}).values()
    generic = [c for c in checkpoints if c["block"] == "module"]
    outputs = [output for c in generic for output in c["outputs"].values()]
    result = Recorded(
        checkpoints=len(checkpoints),
        native=len(checkpoints) - len(generic),
        operations={entry["op"] for trace in traces for entry in trace["operations"]},
        given=len({_between(text, "what ", " computes is taken") for text in said} - {""}),
        undecided=sum("undecidable" in output or "valid" in output for output in outputs),
        without=sum("has no oracle" in text or "has no rounded" in text for text in said),
        problem=findings[0] if findings else "",
    )
    for checked in check(folder):
        result.outputs += 1
        if not checked.worst <= 1:
            result.beyond.append(checked)
    return result


def _between(text: str, before: str, after: str) -> str:
    _, found, rest = text.partition(before)
    name, end, _ = rest.partition(after)
    return name if found and end else ""


def table(rows: Iterable[Row], done: list[Row]) -> Iterator[str]:
    """The rows as text, each as soon as it is there; then what is beyond its limits, by name.

    `done` is filled with them.
    """
    yield "model                calls native  ops given open  judged beyond  judged beyond"
    yield f"{'':43}{'f32':>8}{'':7}{'bf16':>8}"
    for row in rows:
        done.append(row)
        problem = f"{row.model_type:20} {'; '.join(row.problems)}"[:100]
        yield (
            problem
            if row.problems
            else "{:20} {:5} {:6} {:4} {:5} {:4} {:7} {:6} {:7} {:6}".format(*_cells(row))
        )
    yield ""
    yield from _summary(done)


def as_markdown(rows: Iterable[Row], done: list[Row]) -> Iterator[str]:
    """The same for a page of Markdown."""
    heads = ["model", "calls", "native", "ops", "given", "open", "f32", "beyond", "bf16", "beyond"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        done.append(row)
        cells = [row.model_type, *row.problems] if row.problems else _cells(row)
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    yield from _summary(done)


def _cells(row: Row) -> list[Any]:
    parts = list(row.by_dtype.values())
    return [
        row.model_type,
        parts[0].checkpoints,
        parts[0].native,
        len(set().union(*(r.operations for r in parts))),
        max(r.given for r in parts),
        max(r.undecided for r in parts),
        *(number for r in parts for number in (r.outputs, len(r.beyond))),
    ]


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    """What all of them come to, and of each model the references beyond their limits."""
    complete = sum(not row.problems and not _without(row) for row in rows)
    parts = [r for row in rows for r in row.by_dtype.values()]
    yield (
        f"{complete} of {len(rows)} architectures complete: "
        f"{sum(r.checkpoints for r in parts)} calls, {sum(r.outputs for r in parts)} outputs "
        f"judged, {sum(len(r.beyond) for r in parts)} with a reference beyond its limits"
    )
    for row in rows:
        for dtype, recorded in row.by_dtype.items():
            if recorded.beyond:
                worst = max(recorded.beyond, key=lambda checked: checked.worst)
                yield (
                    f"  {row.model_type} {dtype}: {len(recorded.beyond)} beyond, first in "
                    f"{recorded.beyond[0].checkpoint}, worst {worst.worst:.3g}x by {worst.gate}"
                )
            if recorded.without:
                yield f"  {row.model_type} {dtype}: {recorded.without} kinds of calls unjudged"


def _without(row: Row) -> bool:
    return any(recorded.without for recorded in row.by_dtype.values())
