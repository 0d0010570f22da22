"""Sorts more lines than memory holds: sorted runs on disk, which are merged as they are read."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

MOST_HELD = 48 << 20  # characters
MOST_RUNS = 128  # files that are open at once


class Record(NamedTuple):
    """A line, what it is sorted by, and where it came from."""

    key: list[str]
    place: str
    text: str  # with its line feed


class Sorter:
    """Lines by their keys; equal keys in the order in which they were added."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for the runs, which need as much space as the lines."""
        self._folder = folder
        self._held: list[Record] = []
        self._size = 0
        self._runs: list[Path] = []
        self._made = 0

    def add(self, record: Record) -> None:
        """One more line."""
        self._held.append(record)
        self._size += len(record.text)
        if self._size > MOST_HELD:
            self._spill()

    def __iter__(self) -> Iterator[Record]:
        """All lines, sorted."""
        self._held.sort(key=itemgetter(0))
        yield from _merged([*map(_read, self._runs), iter(self._held)])

    def _spill(self) -> None:
        self._held.sort(key=itemgetter(0))
        self._runs.append(self._write(self._held))
        self._held, self._size = [], 0
        if len(self._runs) == MOST_RUNS:
            whole = self._write(_merged(map(_read, self._runs)))
            for run in self._runs:
                run.unlink()
            self._runs = [whole]

    def _write(self, records: Iterable[Record]) -> Path:
        self._made += 1
        path = self._folder / f"{self._made}.run"
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for record in records:
                file.write(json.dumps([record.key, record.place]) + "\n" + record.text)
        return path


def _merged(runs: Iterable[Iterator[Record]]) -> Iterator[Record]:
    return heapq.merge(*runs, key=itemgetter(0))


def _read(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for words in file:
            key, place = json.loads(words)
            yield Record(key, place, next(file))
