"""Journals and payloads that were damaged: what comes from there on is made again."""

from __future__ import annotations

import functools
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_resume import Killed, at_once, killed, killed_at, require_same, run, stop  # noqa: F401

from python_inspector.format import journal

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")


@pytest.mark.parametrize("tear", ["line", "line without its end", "payload", "spool", "every line"])
def test_what_is_torn_is_made_again(tmp_path: Path, tear: str) -> None:
    run(tmp_path / "r")
    partial = killed(tmp_path / "x", 60)
    lines = (partial / ".journal").read_bytes().splitlines(keepends=True)
    payloads = partial / ".payloads"
    expected = 59
    if tear == "line":
        lines[-1] = lines[-1][:100]
    elif tear == "line without its end":
        lines[-1] = lines[-1].rstrip(b"\n")
    elif tear == "every line":
        lines, expected = [*lines[:1], b"\0" * 4096], 0
    elif tear == "spool":
        payloads.unlink()
        expected = 0
    else:
        entries = [json.loads(line[line.index(b"{") :]) for line in lines]
        at = next(i for i, entry in enumerate(entries[30:], 30) if entry["closed"]["tensors"])
        *_, size, offset = entries[at]["closed"]["tensors"][0]
        with payloads.open("r+b") as file:
            file.seek(offset + size - 1)
            last = file.read(1)
            file.seek(offset + size - 1)
            file.write(bytes([last[0] ^ 1]))
        expected = at - 1
    (partial / ".journal").write_bytes(b"".join(lines))
    summary = run(tmp_path / "x", resume=True).summary
    assert summary is not None and summary.taken_over == expected
    require_same(tmp_path / "x", tmp_path / "r")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording in one go, r, and what is left of x after 60 checkpoints."""
    folder = tmp_path_factory.mktemp("left")
    run(folder / "r")
    killed(folder / "x", 60)
    return folder


def with_lines(left: Path, folder: Path, change: Callable[[list[bytes]], list[bytes]]) -> Path:
    """A copy of what is left, with the lines of the journal changed; what `x` is to be called."""
    (partial,) = left.glob(".x.partial-*")
    copy = shutil.copytree(partial, folder / partial.name)
    lines = (copy / ".journal").read_bytes().splitlines(keepends=True)
    (copy / ".journal").write_bytes(b"".join(change(lines)))
    return folder / "x"


def require_resumed(out: Path, left: Path, taken_over: int) -> None:
    summary = run(out, resume=True).summary
    assert summary is not None and summary.taken_over == taken_over
    require_same(out, left / "r")


PLACES = {
    "digit": rb"\d",
    "word": rb'(?<=")[a-z_.]+(?="[,}\]])',
    "key": rb'(?<=")[a-z_]+(?=":)',
}
"""What is damaged, in one of its letters."""


def damaged(line: bytes, what: str, chance: random.Random) -> bytes:
    places = list(re.finditer(PLACES[what], line))
    at = chance.choice(range(*chance.choice(places).span()))
    other = b"0123456789" if what == "digit" else b"abcdefghijklmnopqrstuvwxyz"
    return (
        line[:at] + bytes([chance.choice(other.replace(line[at : at + 1], b""))]) + line[at + 1 :]
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("what", PLACES)
def test_a_damaged_line_and_all_after_it_are_made_again(
    left: Path, tmp_path: Path, what: str, seed: int
) -> None:
    chance = random.Random(f"{what} {seed}")
    at = chance.randrange(1, 61)

    def change(lines: list[bytes]) -> list[bytes]:
        return [*lines[:at], damaged(lines[at], what, chance), *lines[at + 1 :]]

    require_resumed(with_lines(left, tmp_path, change), left, at - 1)


MOVED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "dropped": (lambda lines: [*lines[:40], *lines[41:]], 39),
    "dropped without its end": (lambda lines: [*lines[:40], lines[40][:-1], *lines[41:]], 39),
    "doubled": (lambda lines: [*lines[:40], lines[39], *lines[40:]], 39),
    "swapped": (lambda lines: [*lines[:40], lines[41], lines[40], *lines[42:]], 39),
    "the first checkpoint": (lambda lines: [lines[0], *lines[2:]], 0),
}
"""What became of lines, and how many checkpoints are finished before it."""


@pytest.mark.parametrize(("change", "before"), MOVED.values(), ids=MOVED)
def test_lines_that_do_not_go_on_from_those_before_are_made_again(
    left: Path, tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], before: int
) -> None:
    require_resumed(with_lines(left, tmp_path, change), left, before)


def test_a_journal_that_goes_on_after_damage_is_whole(left: Path, tmp_path: Path) -> None:
    """Its lines go on from the last one that was taken over."""
    out = with_lines(left, tmp_path, lambda lines: [*lines[:31], lines[32]])
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 20, stop)
        with pytest.raises(Killed):
            run(out, resume=True)
    require_resumed(out, left, 50)


def damaged_head(what: str, lines: list[bytes]) -> list[bytes]:
    return [damaged(lines[0], what, random.Random(what)), *lines[1:]]


HEADS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    **{what: functools.partial(damaged_head, what) for what in PLACES},
    "dropped": lambda lines: lines[1:],
    "swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
    "older version": lambda lines: [line[line.index(b"{") :] for line in lines],
    "no text": lambda lines: [b"\xff\0[]\n", *lines[1:]],
    "empty": lambda _: [],
}
"""What became of the first line."""


@pytest.mark.parametrize("change", HEADS.values(), ids=HEADS)
def test_a_journal_with_a_bad_first_line_is_nothing_to_resume(
    left: Path, tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    out = with_lines(left, tmp_path, change)
    assert journal.find_leftover(out) is None
    require_resumed(out, left, 0)
