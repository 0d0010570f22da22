"""Reads result files of `harness --json`: the one way in which reports do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from .decode import decode
from .json_lines import Line, json_lines
from .results import STATUSES, Checkpoint, Comparison, Header, Key, Placed, Run, Summary

SCHEMA = 1
HINT = "write the file with harness --json FILE"

Entry = Header | Placed | Comparison | Summary
_KINDS: dict[object, type[Entry]] = {
    "run": Header, "checkpoint": Checkpoint, "comparison": Comparison, "summary": Summary,
}  # fmt: skip


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """All runs of result files, of which several may have been joined into one.

    A run that was cut short has what is complete. Raises OSError, and ValueError naming file, line
    and field for what is no result file.
    """
    return [run for path in paths for run in _runs_of(path)]


def _runs_of(path: Path) -> list[Run]:
    runs: list[Run] = []
    for _, _, entry in read_entries(path, torn_end=True):
        match entry:
            case Header():
                runs.append(Run(path, entry))
            case Checkpoint():
                runs[-1].checkpoints.append(entry)
            case Comparison():
                runs[-1].comparisons.append(entry)
            case Summary():
                runs[-1].summary = entry
    return runs


def read_entries(
    path: Path, torn_end: bool = False, placed: bool = False
) -> Iterator[tuple[str, Line, Entry]]:
    """Each line's place, the line as it is, and typed. ValueError for an order that no run has.

    torn_end and the place: as of json_lines. placed: of a checkpoint no more than Placed has, and
    none is kept in mind, so that a caller has to see that none is there twice.
    """
    order = _Order(not placed)
    for place, line in json_lines(path, torn_end):
        try:
            entry = _entry(line, placed)
            order.check(entry, str(line["type"]))
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        yield place, line, entry
    if order.header is None:
        raise ValueError(f"{path}: holds no run line; {HINT}")


def _entry(line: Line, placed: bool) -> Entry:
    kind = line.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"type is {kind!r}; {HINT}")
    if kind == "run" and line.get("schema") != SCHEMA:
        raise ValueError(
            f"schema is {line.get('schema')!r}, this reader knows {SCHEMA}; "
            f"use the reports of the harness that wrote it"
        )
    known: type[Entry] = Placed if placed and kind == "checkpoint" else _KINDS[kind]
    entry = decode(known, line)
    if isinstance(entry, Placed) and entry.status not in STATUSES:
        raise ValueError(f"status is {entry.status!r}, known are {', '.join(STATUSES)}")
    return entry


class _Order:
    """The lines that came before in a file."""

    def __init__(self, remembers: bool) -> None:
        self.header: Header | None = None
        self._remembers = remembers
        self._ended = False
        self._seen: set[tuple[Key, str]] = set()

    def check(self, entry: Entry, kind: str) -> None:
        """ValueError where the entry cannot come next."""
        if isinstance(entry, Header):
            self.header, self._ended, self._seen = entry, False, set()
            return
        if self.header is None:
            raise ValueError(f"a {kind} line comes before the run line")
        if self._ended:
            raise ValueError(f"a {kind} line comes behind the run's summary")
        self._ended = isinstance(entry, Summary)
        if isinstance(entry, Placed) and self._remembers:
            key = self.header.key(entry), entry.fixture
            if key in self._seen:
                raise ValueError(f"{entry.words} is there twice in one run")
            self._seen.add(key)
