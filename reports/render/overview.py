"""What the report says first: groups of failures and losses, matrix, tolerances, blind spots."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from ..results import STATUSES, Checkpoint, Gate, Output, Run
from .delta import Change, Delta

Place = tuple[str, str, str]  # block, device, dtype
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def place(checkpoint: Checkpoint) -> Place:
    """Which cell of the matrix a checkpoint belongs to."""
    return checkpoint.block, checkpoint.device, checkpoint.dtype


def checkpoints(runs: Iterable[Run]) -> list[Checkpoint]:
    """Those of all runs, in order."""
    return [checkpoint for run in runs for checkpoint in run.checkpoints]


def grouped(items: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Values by key, keys in order of first use."""
    groups: dict[K, list[V]] = defaultdict(list)
    for key, value in items:
        groups[key].append(value)
    return groups


@dataclass(frozen=True)
class FailureGroup:
    """Failures of one kind, or of one known bug, in one cell of the matrix."""

    place: Place
    status: str
    count: int
    of: int  # checkpoints of the cell
    loose: int  # those that failed and are nondeterministic, too
    worst: Checkpoint  # the example that is shown

    @property
    def size(self) -> str:
        """How many failed: 3 of 12, 2 of them nondeterministic."""
        also = f", {self.loose:,} of them nondeterministic" if self.loose else ""
        return f"{self.count:,} of {self.of:,}{also if self.status != 'nondeterministic' else ''}"


def _bug(checkpoint: Checkpoint) -> str:
    return checkpoint.known_bug.bug if checkpoint.known_bug else ""


def failure_groups(runs: list[Run]) -> list[FailureGroup]:
    """The most severe status first, then the simplest block: its failure is in the others, too."""
    everything = checkpoints(runs)
    sizes = Counter(place(checkpoint) for checkpoint in everything)
    failing = grouped(((place(c), c.status, _bug(c)), c) for c in everything if c.failed)
    groups = [
        FailureGroup(
            where, status, len(found), sizes[where], sum(c.loose for c in found),
            max(found, key=lambda c: c.ratio),
        )
        for (where, status, _), found in failing.items()
    ]  # fmt: skip
    return sorted(groups, key=lambda g: (STATUSES.index(g.status), len(g.worst.impl), g.place))


@dataclass(frozen=True)
class LossGroup:
    """Checkpoints of one cell that are worse than the baseline."""

    place: Place
    changes: list[Change]  # the worst first


def loss_groups(delta: Delta) -> list[LossGroup]:
    """Losses of checkpoints that pass: failures are listed as such. The largest first."""
    passing = [change for change in delta.worse if not change.checkpoint.failed]
    groups = grouped((place(change.checkpoint), change) for change in passing)
    losses = [LossGroup(where, changes) for where, changes in groups.items()]
    return sorted(losses, key=lambda g: (-g.changes[0].size, len(g.changes[0].checkpoint.impl)))


@dataclass
class Cell:
    """Block on device in dtype."""

    counts: Counter[str] = field(default_factory=Counter)
    ratio: float = 0.0  # of the checkpoint nearest to its limit
    worse: int = 0

    @property
    def status(self) -> str:
        """The most severe one; "pass" where anything passed and nothing failed."""
        if failed := [s for s in STATUSES[: STATUSES.index("unsupported")] if self.counts[s]]:
            return failed[0]
        return "pass" if self.counts["pass"] else next(s for s in STATUSES if self.counts[s])

    @property
    def of(self) -> int:
        """All its checkpoints."""
        return self.counts.total()


@dataclass(frozen=True)
class Matrix:
    """Overview: block x (device, dtype)."""

    columns: list[tuple[str, str]]
    rows: dict[str, dict[tuple[str, str], Cell]]


def matrix(runs: list[Run], delta: Delta | None) -> Matrix:
    """All cells that have a checkpoint."""
    rows: dict[str, dict[tuple[str, str], Cell]] = defaultdict(lambda: defaultdict(Cell))
    worse = {id(change.checkpoint) for change in delta.worse} if delta else set()
    for checkpoint in checkpoints(runs):
        cell = rows[checkpoint.block][checkpoint.device, checkpoint.dtype]
        cell.counts[checkpoint.status] += 1
        cell.worse += id(checkpoint) in worse
        if checkpoint.ratio > cell.ratio:
            cell.ratio = checkpoint.ratio
    columns = sorted({column for cells in rows.values() for column in cells})
    return Matrix(columns, {block: dict(cells) for block, cells in sorted(rows.items())})


@dataclass(frozen=True)
class Tolerance:
    """What a contract allowed in one cell of the matrix, and what was needed of it."""

    place: Place
    contract: str
    judged: int
    worst: Checkpoint
    output: Output
    gate: Gate
    elements: int  # compared with the contract's rounded model, bit by bit; 0: not comparable
    differ: int


def tolerances(runs: list[Run]) -> list[Tolerance]:
    """One row per block, device, dtype and contract, by name."""
    judged = (c for c in checkpoints(runs) if c.outputs)
    found = []
    for (where, contract), group in grouped(((place(c), c.contract), c) for c in judged).items():
        worst = max(group, key=lambda c: c.ratio)
        if nearest := worst.worst:
            rounded = [o.conformance for c in group for o in c.outputs if o.conformance]
            found.append(
                Tolerance(
                    where, contract, len(group), worst, *nearest,
                    sum(it.n for it in rounded), sum(it.differ for it in rounded),
                )
            )  # fmt: skip
    return sorted(found, key=lambda row: (row.place, row.contract))


@dataclass(frozen=True)
class BlindSpot:
    """A feature that some checkpoint of a block has and cannot see."""

    block: str
    feature: str  # "": the whole block; "bug: ...": a known bug that would pass
    blind: int
    seen: int


def blind_spots(runs: list[Run]) -> list[BlindSpot]:
    """Counted as the harness does at the end of a run; what no checkpoint sees first."""
    counted = [
        c for c in checkpoints(runs) if c.status in ("pass", "fail", "nondeterministic", "blind")
    ]
    seeing = {c.block for c in counted if c.status != "blind"}
    blind: Counter[tuple[str, str]] = Counter()
    seen: Counter[tuple[str, str]] = Counter()
    for c in counted:
        if c.block not in seeing:
            blind[c.block, ""] += 1
            continue
        if c.passing_bugs is not None:
            for bug in c.margins or {}:
                (blind if bug in c.passing_bugs else seen)[c.block, f"bug: {bug}"] += 1
        unseen = set(c.blind_to)
        shown = blind if c.status == "blind" else seen
        blind.update((c.block, feature) for feature in unseen)
        shown.update((c.block, feature) for feature in c.features if feature not in unseen)
    spots = [BlindSpot(*key, count, seen[key]) for key, count in blind.items()]
    return sorted(spots, key=lambda s: (s.seen > 0, -s.blind, s.block, s.feature))
