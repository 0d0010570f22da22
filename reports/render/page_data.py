"""The checkpoints for the page's script: what its table lists, and in chunks what a row opens.

Both are JSON, compressed: 100,000 checkpoints are 130 MB of details, of which a reader opens a few.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from ..results import ChainRow, Checkpoint, Output, Run
from .delta import Delta

CHUNK = 200  # checkpoints whose details are parsed at once
_REPEATS = {"D0": "bit by bit", "D1": "with other bits"}  # by determinism


def packed(value: object) -> Markup:
    """JSON, compressed, in letters that mean nothing in HTML whatever text it holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(base64.b64encode(zlib.compress(text.encode())).decode())


def _number(value: float) -> float | str:
    """Four significant digits; what is not finite as in the result files."""
    if math.isfinite(value):
        return float(f"{value:.4g}")
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


@dataclass
class Names:
    """Words that repeat, by number."""

    words: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def __call__(self, word: str) -> int:
        """The word's number."""
        if word not in self.numbers:
            self.numbers[word] = len(self.words)
            self.words.append(word)
        return self.numbers[word]


def _gates(output: Output, name: Names) -> list[list[Any]]:
    """[gate, statistic, limit, passed, where, factors] of all but kept promises of zero."""
    return [
        [
            name(gate.name), _number(gate.statistic), _number(gate.limit), int(gate.passed),
            gate.where, [[name(factor), _number(x)] for factor, x in gate.derivation.items()],
        ]
        for gate in output.gates
        if not (gate.passed and gate.limit == 0)
    ]  # fmt: skip


def _output(output: Output, name: Names) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name(output.name),
        "gates": _gates(output, name),
        "zero": sum(gate.passed and gate.limit == 0 for gate in output.gates),
        "error": _number(output.statistics.error),
        "reference": _number(output.recorded_error),
        "octaves": _trimmed(output.informative.octaves),
    }
    if output.conformance:
        found["bits"] = [output.conformance.differ, output.conformance.n]
    if output.where:
        found["where"] = f"{output.where.region}; worst {output.where.worst}"
        found["maps"] = [
            [name(each.name), [_number(x) for x in each.energy]]
            for each in output.where.maps
            if len(each.energy) <= 512
        ]
        if (picture := output.where.picture) and (levels := picture.levels):
            axes = [(picture.row_axes, picture.rows), (picture.column_axes, picture.columns)]
            found["picture"] = [[name(axis), n] for axis, n in axes] + [levels]
        found["groups"] = [
            [name(it.family), it.group, _number(it.value)] for it in output.informative.worst_groups
        ]
    return found


def _trimmed(counts: list[int]) -> list[int]:
    """Without the zeros at the end."""
    last = max((i for i, count in enumerate(counts) if count), default=-1)
    return counts[: last + 1]


def _chain_row(row: ChainRow, name: Names) -> list[Any]:
    figures = (row.isolated, row.inherited, row.chained, row.chained_limit, row.reference)
    label = f"{row.checkpoint} {row.output}"
    return [label, *map(_number, figures), name(row.diagnosis)]


def _details(checkpoint: Checkpoint, name: Names) -> dict[str, Any]:
    found: dict[str, Any] = {
        "again": checkpoint.again,
        "contract": name("; ".join([checkpoint.contract, *checkpoint.looser_contracts])),
        "impl": [name(impl) for impl in checkpoint.impl],
        "sees": [name(feature) for feature in checkpoint.features],
        "blind": [name(feature) for feature in checkpoint.blind_to],
        "bits": checkpoint.output_sha256[:16],
        "golden": checkpoint.golden_sha256[:16],
        "repeats": _REPEATS.get(checkpoint.determinism, ""),
        "outputs": [_output(output, name) for output in checkpoint.outputs],
    }
    if checkpoint.reason or checkpoint.details:
        found["why"] = [checkpoint.reason, *checkpoint.details]
    if checkpoint.known_bug:
        found["bug"] = checkpoint.known_bug.bug
    if checkpoint.diagnosis:
        found["rounds"] = checkpoint.diagnosis
    if checkpoint.chain:
        found["chain"] = [_chain_row(row, name) for row in checkpoint.chain.rows]
    return found


COLUMNS = (
    "status", "block", "device", "dtype", "recording", "id", "share", "gate", "error", "reference",
    "change", "run",
)  # fmt: skip


def _row(c: Checkpoint, name: Names, change: float | None, run: int) -> tuple[Any, ...]:
    """In the order of COLUMNS: words by number, figures of the gate nearest to its limit."""
    worst = c.worst
    return (
        name(c.status), name(c.block), name(c.device), name(c.dtype), name(c.recording),
        c.checkpoint, _number(c.ratio), name(worst[1].name if worst else ""),
        _number(worst[0].statistics.error if worst else math.nan),
        _number(worst[0].recorded_error if worst else math.nan),
        None if change is None else _number(change), run,
    )  # fmt: skip


def page_data(runs: list[Run], delta: Delta | None) -> tuple[Markup, list[Markup]]:
    """The index of all checkpoints, column by column, and their details in chunks of CHUNK.

    `change` is the error over the baseline's, or null; `run` counts result files from 0.
    """
    name = Names()
    columns: dict[str, list[Any]] = {column: [] for column in COLUMNS}
    chunks: list[Markup] = []
    details: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        for c in run.checkpoints:
            change = delta.ratios.get(id(c)) if delta else None
            for column, value in zip(columns.values(), _row(c, name, change, number), strict=True):
                column.append(value)
            details.append(_details(c, name))
            if len(details) == CHUNK:
                chunks.append(packed(details))
                details = []
    if details:
        chunks.append(packed(details))
    runs_named = [f"{run.path.name}{'' if run.header.fused else ', composed'}" for run in runs]
    index = {"names": name.words, "columns": columns, "chunk": CHUNK, "runs": runs_named}
    return packed(index), chunks
