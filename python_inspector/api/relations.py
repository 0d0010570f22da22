"""Relations between calls of one kernel, which need no reference: a row keeps its bits whatever is
computed next to it. Here is which calls show that."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

Batch = int | Mapping[str, int] | None
"""Which axis has the rows: one of all operands, or by operand; None: the leading one."""
Names = str | Iterable[str] | Mapping[str, str]
"""Relations, or what each demands."""
RELATIONS = ("batch", "position", "neighbours", "padding", "chunks", "ragged", "repeat", "stream")
"""Those that are tried where none is named."""
KNOWN = (*RELATIONS, "graph")
"""Not every kernel may be captured in a graph: that is tried where it is asked for."""
OF_A_DEVICE = ("stream", "graph")
"""Those that need an accelerator."""
WHOLE = ("repeat", *OF_A_DEVICE)
"""Those that need no rows: the same call again."""
BITS, LIMITS = "bits", "limits"
_MOST_PARTS = 32
"""Rows that are all computed one by one."""
_MANY = 257
"""Rows that small ones are padded to: kernels change at 256."""


@dataclass(frozen=True)
class Variation:
    """One more call. `source`: for each of its rows the row whose operands it has; `judged`: the
    places whose outputs are compared with those of their sources."""

    relation: str
    words: str
    source: tuple[int, ...] = ()
    judged: tuple[int, ...] = ()
    fill: str = ""
    """What the floats of all other rows are: nan, inf, huge, zero; "": those of their sources."""
    size: str = ""
    """How long all other rows are, where those are sequences; "": as they were."""


@dataclass(frozen=True)
class Asked:
    """What each relation demands, by its name, and which axes have the rows."""

    demands: Mapping[str, str] = field(default_factory=dict)
    batch: Batch = None


def asked_relations(given: Names, batch: Batch) -> Asked:
    """The same bits where nothing else is said; ValueError for an unknown name."""
    names = [given] if isinstance(given, str) else given
    demands = dict(given) if isinstance(given, Mapping) else dict.fromkeys(names, BITS)
    for name, demand in demands.items():
        if name not in KNOWN:
            raise ValueError(f"relation {name!r} is unknown; known are {', '.join(KNOWN)}")
        if demand not in (BITS, LIMITS):
            raise ValueError(f"relation {name!r} demands {demand!r}, expected {BITS} or {LIMITS}")
    return Asked({name: demands[name] for name in KNOWN if name in demands}, batch)


def variations(relation: str, count: int, *, most: int = 0, floats: bool = True) -> list[Variation]:
    """The calls that show whether a relation holds for so many rows, the plainest first; none where
    the rows are too few. `most`: rows that are not too large; `floats`: whether rows have any."""
    if relation in WHOLE:
        return [Variation(relation, _WHOLE_WORDS[relation])] * 2
    if count < (1 if relation == "padding" else 2):
        return []
    found = [it for it in _MAKERS[relation](count) if len(it.source) <= max(most, count + 1)]
    return [it for it in found if floats or not it.fill or it.fill == "zero"]


_WHOLE_WORDS = {
    "repeat": "in another call", "stream": "on another stream", "graph": "replayed from a graph",
}  # fmt: skip


def _range(relation: str, first: int, last: int, rows: int) -> Variation:
    named = f"row {first}" if last == first + 1 else f"rows {first}:{last}"
    source = tuple(range(first, last))
    return Variation(relation, f"with {named} of {rows} alone", source, tuple(range(len(source))))


def _batch(count: int) -> Iterator[Variation]:
    """Each row of three alone, then sizes around powers of two, where kernels change tiles."""
    for row in sorted({0, count // 2, count - 1}):
        yield _range("batch", row, row + 1, count)
    sizes = {size for k in range(1, count.bit_length() + 1) for size in (1 << k, (1 << k) + 1)}
    for size in sorted(it for it in sizes if it < count):
        yield _range("batch", 0, size, count)


def _chunks(count: int) -> Iterator[Variation]:
    for parts in sorted({2, 3, count if count <= _MOST_PARTS else 3}):
        if parts > count:
            continue
        borders = [count * part // parts for part in range(parts + 1)]
        for first, last in pairwise(borders):
            yield _range("chunks", first, last, count)


def _position(count: int) -> Iterator[Variation]:
    order = list(range(count))
    shuffled = random.Random(count).sample(order, count)
    moved = {
        "the rows moved by one place": order[1:] + order[:1],
        "the rows in reverse order": order[::-1],
        "the halves exchanged": order[count // 2 :] + order[: count // 2],
        "the rows shuffled": shuffled,
    }
    seen = {tuple(order)}
    for words, source in moved.items():
        if tuple(source) not in seen:
            seen.add(tuple(source))
            yield Variation("position", f"with {words}", tuple(source), tuple(order))


def _halves(count: int, times: Iterable[str]) -> Iterator[tuple[str, list[int]]]:
    """Half of the rows, and then the other half, each time."""
    order = range(count)
    chance = random.Random(count)
    for it in times:
        kept = sorted(chance.sample(order, count // 2))
        yield it, kept
        yield it, [row for row in order if row not in set(kept)]


def _ragged(count: int) -> Iterator[Variation]:
    """Half of the sequences keep their lengths."""
    for size, half in _halves(count, ("one token", "half their length", "twice their length")):
        words = f"with {size} in {count - len(half)} other sequences"
        yield Variation("ragged", words, tuple(range(count)), tuple(half), size=size)


def _neighbours(count: int) -> Iterator[Variation]:
    """Half of the rows keep their operands."""
    order = range(count)
    for fill, half in _halves(count, ("nan", "inf", "huge", "")):
        first, own = half[0], set(half)
        words = f"{fill} in {count - len(half)} other rows"
        if not fill:
            words = f"row {first} in the place of {count - len(half)} other rows"
        source = tuple(row if row in own else first for row in order)
        yield Variation("neighbours", f"with {words}", source, tuple(half), fill)


def _padding(count: int) -> Iterator[Variation]:
    sizes = {count + 1, 1 << count.bit_length(), 4 * count, _MANY}
    for size in sorted(it for it in sizes if it > count):
        for fill in ("zero", "nan"):
            words = f"with {size - count} rows of {fill} after the {count}"
            source = (*range(count), *[0] * (size - count))
            yield Variation("padding", words, source, tuple(range(count)), fill)


_MAKERS = {
    "batch": _batch, "chunks": _chunks, "position": _position, "neighbours": _neighbours,
    "padding": _padding, "ragged": _ragged,
}  # fmt: skip
