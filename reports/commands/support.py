"""reports support: which device has run which model's recordings, from the baselines kept here.

A row is a model type, a column a device. Nothing is run: the same files print the same table.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..json_lines import opened
from . import Commands

_ROOT = Path(__file__).resolve().parents[2]
_NEVER = {"hip": "compiles"}  # devices that nothing has run on: what is known of them
_NOTES = (
    "checkpoints by their worst status, of the figures in reports/baselines",
    "emu:32, emu-check:*: run by ci/test, no figures kept",
    "oracle: the float64 reference, held to transformers' own code in every run",
)
_SINGLE = ("blocks", "components")  # recordings of no model


@dataclass(frozen=True)
class _Column:
    device: str
    hardware: str
    checkpoints: dict[tuple[str, str, str], str]  # recording, id, dtype: its worst status


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("support", help="which device has run which model's recordings")
    parser.add_argument("--fixtures", type=Path, default=_ROOT / "fixtures")
    parser.add_argument("--baselines", type=Path, default=_ROOT / "reports" / "baselines")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the matrix; the exit code."""
    models = _models(options.fixtures)
    files = sorted(options.baselines.glob("*.jsonl*"))
    lines = {file: list(_read(file)) for file in files}
    columns = [
        _column(read) for read in lines.values() if read and read[0].get("type") == "baseline"
    ]
    for line in _table(models, columns):
        print(line.rstrip())
    print()
    for note in _NOTES:
        print(note)
    for device, names in _whole_models(lines.values()).items():
        print(f"whole models of published size, speed kept for {device}: {', '.join(names)}")
    return 0


def _read(file: Path) -> Iterator[dict[str, Any]]:
    with opened(file) as lines:
        yield from (json.loads(line) for line in lines)


def _models(fixtures: Path) -> dict[str, str]:
    """The model type of every recording, by its name."""
    out = {}
    for path in sorted(fixtures.glob("*/*/recording.json")):
        recording = json.loads(path.read_text(encoding="utf-8"))
        kind = recording["provenance"]["model_type"]
        out[recording["name"]] = "single blocks" if kind in _SINGLE else kind
    return out


def _column(lines: list[dict[str, Any]]) -> _Column:
    """A checkpoint counts once, by its worst run: baselines may hold it with and without fusion."""
    checkpoints: dict[tuple[str, str, str], str] = {}
    for line in lines:
        if "checkpoint" not in line:
            continue
        key = (line["recording"], line["checkpoint"], line["dtype"])
        if checkpoints.get(key, "pass") == "pass":
            checkpoints[key] = line["status"]
    hardware = lines[0]["runs"][0]["devices"][0].partition(": ")[2].partition(", ")[0]
    return _Column(lines[0]["device"], hardware.removeprefix("the "), checkpoints)


def _table(models: dict[str, str], columns: list[_Column]) -> Iterator[str]:
    measured = {column.device for column in columns}
    never = {device: words for device, words in _NEVER.items() if device not in measured}
    rows = [
        ["", *(column.device for column in columns), *never],
        ["", *(column.hardware for column in columns), *never.values()],
    ]
    for kind in sorted(set(models.values()), key=lambda kind: (kind == "single blocks", kind)):
        cells = [_cell(column, models, kind) for column in columns]
        rows.append([kind, *cells, *("never run" for _ in never)])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def _cell(column: _Column, models: dict[str, str], kind: str) -> str:
    statuses = Counter(
        status for key, status in column.checkpoints.items() if models.get(key[0]) == kind
    )
    return ", ".join(f"{count} {status}" for status, count in statuses.most_common()) or "not run"


def _whole_models(files: Any) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for lines in files:
        for line in lines:
            if line.get("type") == "model_bench" and line["status"] == "pass":
                found.setdefault(line["device"], set()).add(line["model"])
    return {device: sorted(names) for device, names in sorted(found.items())}
