"""reports corpus: what passes the gates of benchmarks and fails here, of kernels that are known to
be right or wrong.

`python -m tests.corpus` measures them. Nothing is run here: the same file prints the same table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..json_lines import json_lines
from . import Commands

_MEASURED = Path(__file__).resolve().parents[1] / "corpus.jsonl.xz"
_OURS, _HARD = "check()", "check(hard=True)"
_NOT_WRONG = ("pass", "blind")


@dataclass(frozen=True)
class _Corpus:
    gates: dict[str, list[str]]
    """Of benchmarks, with the dtypes that each is for."""
    device: str
    torch: str
    rows: list[dict[str, Any]]

    def of(
        self, *, wrong: bool, wide: bool | None = None, hard: bool = False
    ) -> list[dict[str, Any]]:
        """`hard`: those of problems whose wrong kernels need hard operands to show."""
        return [
            row for row in self.rows
            if bool(row.get("fault")) == wrong and ("plain" in row) == hard
            and wide in (None, row["dtype"] == "f32")
        ]  # fmt: skip

    def asked(self, gate: str, row: dict[str, Any]) -> bool:
        return gate in (_OURS, _HARD) or row["dtype"] in self.gates[gate]


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("corpus", help="what passes benchmarks and fails here")
    parser.add_argument("file", type=Path, nargs="?", default=_MEASURED, help="of tests.corpus")
    parser.add_argument("--by-fault", action="store_true", help="wrong kernels by kind of fault")
    parser.add_argument("--list", action="store_true", help="every kernel and dtype")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the table; the exit code."""
    corpus = _read(options.file)
    lines = _every if options.list else _by_fault if options.by_fault else _gates
    for line in lines(corpus):
        print(line.rstrip())
    return 0


def _read(file: Path) -> _Corpus:
    places = list(json_lines(file))
    place, head = places[0]
    if head.get("corpus") != 1:
        raise ValueError(f"{place}: is no file of tests.corpus, version 1")
    return _Corpus(head["gates"], head["device"], head["torch"], [row for _, row in places[1:]])


def _passes(gate: str, row: dict[str, Any]) -> bool:
    if gate == _OURS:
        return row.get("plain", row["says"]) in _NOT_WRONG
    return row["says"] in _NOT_WRONG if gate == _HARD else gate in row.get("passes", ())


def _judged_right(row: dict[str, Any]) -> bool:
    """By all that check() is given."""
    return _passes(_HARD, row) != bool(row.get("fault"))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for first, *cells in rows:
        rest = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join((first.ljust(widths[0]), *rest))


def _gates(corpus: _Corpus) -> Iterator[str]:
    """A row per gate: wrong kernels that it passes, right ones that it fails."""
    parts = [corpus.of(wrong=wrong, wide=wide) for wrong in (True, False) for wide in (True, False)]
    rows = [
        ["", "wrong kernels passed", "", "right ones failed", ""],
        ["", "f32", "16 bits", "f32", "16 bits"],
        ["kernels", *(str(len(part)) for part in parts)],
    ]
    for gate in (*corpus.gates, _OURS):
        counts = (_count(corpus, gate, part, passed=i < 2) for i, part in enumerate(parts))
        rows.append([gate, *counts])
    yield from _aligned(rows)
    wrong = corpus.of(wrong=True)
    found = [row for row in wrong if row.get("passes") and not _passes(_OURS, row)]
    names = {row["kernel"] for row in found}
    yield ""
    yield f"{len(names)} wrong kernels pass a benchmark, in some dtype, and fail here"
    yield from _need_hard(corpus)
    for row in corpus.rows:
        if not _judged_right(row):
            said = row["says"] + (f", {row['why']}" if row.get("why") else "")
            yield f"{_OURS} is wrong: {row['kernel']}, {row['dtype']}: {said}"
    yield f"on {corpus.device}, torch {corpus.torch}"


def _need_hard(corpus: _Corpus) -> Iterator[str]:
    """Of kernels that are counted apart."""
    parts = [corpus.of(wrong=wrong, hard=True) for wrong in (True, False)]
    if not any(parts):
        return
    yield "apart from these:"
    rows = [["need hard operands", "wrong kernels passed", "right ones failed"]]
    rows.append(["kernels", *(str(len(part)) for part in parts)])
    for gate in (*corpus.gates, _OURS, _HARD):
        counts = (_count(corpus, gate, part, passed=i < 1) for i, part in enumerate(parts))
        rows.append([gate, *counts])
    yield from _aligned(rows)


def _count(corpus: _Corpus, gate: str, part: list[dict[str, Any]], *, passed: bool) -> str:
    asked = [row for row in part if corpus.asked(gate, row)]
    return str(sum(_passes(gate, row) == passed for row in asked)) if asked else "-"


def _by_fault(corpus: _Corpus) -> Iterator[str]:
    """Wrong kernels that pass, a row per kind of fault."""
    gates = (*corpus.gates, _OURS)
    rows = [["fault", "judged", *gates]]
    faults = sorted({row["fault"] for row in corpus.of(wrong=True)})
    for fault in faults:
        own = [row for row in corpus.of(wrong=True) if row["fault"] == fault]
        rows.append(
            [fault, str(len(own)), *(_count(corpus, gate, own, passed=True) for gate in gates)]
        )
    yield from _aligned(rows)


def _every(corpus: _Corpus) -> Iterator[str]:
    """Kernel, dtype, error in float64, gates passed, what check() says, where it was reported."""
    for row in corpus.rows:
        kind = row.get("fault") or "right"
        passed = ", ".join(row.get("passes", ())) or "none"
        said = row["says"] + (f" ({row['why']})" if row.get("why") else "")
        source = f"; reported: {row['source']}" if row.get("source") else ""
        yield (
            f"{row['kernel']}, {row['dtype']}: {kind}, error {row['error']:g} x what rounding may "
            f"do; passes {passed}; {_OURS}: {said}{source}"
        )
