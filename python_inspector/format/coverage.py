"""`inspector coverage`: what recordings vary of every block, and what none of them does.

A row is a block and something that its kernels depend on: a param, the extent of an axis, the ratio
of two, the largest id or position. Of each dtype it counts the checkpoints that have it and the
values it takes; a row with one value everywhere is something that no recording varies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .recording import is_recorded_alone
from .safetensors_file import read_header
from .strict_json import load_json
from .validate import RECORDING, find_recordings

DTYPES = ("f32", "bf16", "f16")
FEW = 10
"""Checkpoints of a dtype below which a row is thin."""
_MEASURED = frozenset({"max_abs_score"})
"""Params that say what a call's values were."""
_ALIKE = {"a": "b", "q": "k", "x": "out"}
"""Operands whose heads may be more than the other's."""
_COUNTED = frozenset({"positions", "ids"})
Json = Mapping[str, Any]


@dataclass
class Row:
    """One thing that a block's kernels depend on."""

    block: str
    name: str
    count: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Checkpoints by dtype."""
    values: dict[str, set[Any]] = field(default_factory=lambda: defaultdict(set))

    @property
    def all_values(self) -> set[Any]:
        return {value for values in self.values.values() for value in values}

    @property
    def is_thin(self) -> bool:
        """Whether a dtype has few checkpoints, or nothing varies it."""
        return len(self.all_values) < 2 or any(self.count[d] < FEW for d in DTYPES)


def coverage(folders: Iterable[Path]) -> list[Row]:
    """The rows of the recordings in these folders, sorted."""
    rows: dict[tuple[str, str], Row] = {}
    for folder in (found for path in folders for found in find_recordings(path)):
        recording = load_json(folder / RECORDING)
        dtype = recording["provenance"]["dtype"]
        for checkpoint in recording["checkpoints"]:
            block = checkpoint["block"]
            if is_recorded_alone(block, checkpoint["params"]):
                continue
            for name, value in _values(folder, recording, checkpoint):
                row = rows.setdefault((block, name), Row(block, name))
                row.count[dtype] += 1
                row.values[dtype].add(value)
    return [rows[key] for key in sorted(rows)]


def table(rows: Iterable[Row], *, thin: bool = False) -> Iterator[str]:
    """Lines for people: checkpoints and values of each dtype, then the values."""
    cells = [
        [row.block, row.name, *(_cell(row, dtype) for dtype in DTYPES), _shown(row)]
        for row in rows
        if not thin or row.is_thin
    ]
    head = ["block", "what", *DTYPES, "values"]
    widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head))]
    for line in [head, *cells]:
        yield "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()


def _cell(row: Row, dtype: str) -> str:
    """Checkpoints, and how many values they have."""
    return f"{row.count[dtype]}/{len(row.values[dtype])}" if row.count[dtype] else "-"


def _shown(row: Row) -> str:
    values = sorted(row.all_values, key=lambda v: (not isinstance(v, int | float), v, str(v)))
    if len(values) == 1:
        return f"only {values[0]}"
    shown = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
    return ", ".join(shown) if len(values) < 7 else f"{shown[0]}, {shown[1]} .. {shown[-1]}"


def _values(folder: Path, recording: Json, checkpoint: Json) -> Iterator[tuple[str, Any]]:
    yield from _flat("", checkpoint["params"])
    extents: dict[str, dict[str, int]] = {}
    for name, ref in checkpoint["inputs"].items():
        shape = recording["tensors"][ref["tensor"]]["shape"]
        extents[name] = dict(zip(ref["axes"], shape, strict=True))
        if name in _COUNTED:
            largest = _largest(folder, recording, ref["tensor"])
            if largest is not None:
                yield f"largest of {name}", largest
    seen = {axis: extent for axes in extents.values() for axis, extent in axes.items()}
    yield from ((f"axis {axis}", extent) for axis, extent in seen.items())
    for first, second in _ALIKE.items():
        heads = [_heads(extents.get(name, {})) for name in (first, second)]
        if all(heads):
            yield f"heads of {first} per head of {second}", heads[0] // heads[1]
    names = {name.rpartition(".")[2]: key for name, key in checkpoint["weights"].items()}
    if names:
        yield "bias", str("bias" in names)
    if checkpoint["block"] in ("embedding", "lm_head"):
        yield "rows of weight", recording["tensors"][names["weight"]]["shape"][0]


def _heads(axes: Mapping[str, int]) -> int:
    return axes.get("head") or axes.get("kv_head") or 0


def _flat(prefix: str, params: Any) -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif name not in _MEASURED:
            yield f"{prefix}{name}", str(value) if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> Any:
    return str(value) if value is None or isinstance(value, bool) else value


def _largest(folder: Path, recording: Json, key: str) -> int | None:
    """Of a whole-numbered operand; None for a generated one."""
    entry = recording["tensors"][key]
    if "file" not in entry or entry["dtype"] != "i64":
        return None
    file = read_header(folder / recording["files"][entry["file"]]["path"])
    return int(np.frombuffer(file.payload_of(key), np.int64).max(initial=0))
