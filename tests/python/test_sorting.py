"""Sorting more lines than memory may hold."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from reports.fleet import sorting
from reports.fleet.sorting import Record, Sorter


def records(count: int, size: int = 10) -> list[Record]:
    chance = random.Random(1)
    words = [
        [f"é{chance.randrange(count // 2)}", chance.choice(["", "\n", "z"])] for _ in range(count)
    ]
    return [Record(key, f"file:{n}", f"{n} {'ü' * size}\u2028\n") for n, key in enumerate(words)]


@pytest.mark.parametrize(("held", "runs"), [(1 << 30, 4), (100, 200), (100, 4), (0, 2)])
def test_lines_come_sorted_equal_ones_as_they_were_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, runs: int
) -> None:
    monkeypatch.setattr(sorting, "MOST_HELD", held)
    monkeypatch.setattr(sorting, "MOST_RUNS", runs)
    lines = Sorter(tmp_path)
    given = records(500)
    for record in given:
        lines.add(record)
        assert sum(1 for _ in tmp_path.iterdir()) <= runs
    assert list(lines) == sorted(given, key=lambda record: record.key)
    assert bool(list(tmp_path.iterdir())) == (held < 1 << 30)


def test_memory_stays_what_it_is_however_many_lines_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "MOST_HELD", 200_000)
    peaks = []
    for count in (2_000, 20_000):
        (folder := tmp_path / str(count)).mkdir()
        tracemalloc.start()
        lines = Sorter(folder)
        for number in range(count):
            lines.add(Record([f"{number % 77:02}", str(number)], "file:1", "x" * 200 + "\n"))
        assert sum(1 for _ in lines) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2.5 * peaks[0]
