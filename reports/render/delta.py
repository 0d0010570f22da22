"""Runs compared with baselines, by the rules of the history (reports/history/compare.py)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ..history.compare import Finding, Kind, Trend
from ..history.compare import compare as compare_runs
from ..history.results import kept
from ..history.sources import read_file
from ..results import Checkpoint, Run
from .words import times


@dataclass(frozen=True)
class Change:
    """A checkpoint that is not as it was."""

    checkpoint: Checkpoint
    before: str  # its status then
    finding: Finding

    @property
    def new_status(self) -> bool:
        """Whether its verdict changed."""
        return self.before != self.checkpoint.status

    @property
    def size(self) -> float:
        """The error over the baseline's; 1 where there is no such figure."""
        return 1.0 if math.isnan(self.finding.ratio) else self.finding.ratio

    @property
    def words(self) -> str:
        """What happened, in short."""
        if self.new_status:
            return f"{self.before} → {self.checkpoint.status}".replace("_", " ")
        return f"error {times(self.size)}" if self.size > 1.2 else self.finding.kind.value


@dataclass
class Delta:
    """What changed between baselines and runs."""

    name: str
    worse: list[Change] = field(default_factory=list)  # another verdict first, then by size
    better: list[Change] = field(default_factory=list)
    ratios: dict[int, float] = field(default_factory=dict)  # of E_T, by id of the checkpoint
    unchanged: int = 0  # the same bits, or changed within what the rules allow
    not_comparable: Counter[str] = field(default_factory=Counter)  # by reason
    losses: list[Trend] = field(default_factory=list)  # of all checkpoints of a device together
    notes: list[str] = field(default_factory=list)

    @property
    def compared(self) -> int:
        """Of how many checkpoints something can be said."""
        return len(self.ratios)


def compare(runs: list[Run], paths: list[Path]) -> Delta:
    """Compares runs with baselines or result files. Raises OSError, ValueError as reading does."""
    old = [run for path in paths for run in read_file(path)]
    known = {key: checkpoint.status for run in old for key, checkpoint in run.checkpoints.items()}
    now = {run.header.key(c): c for run in runs for c in run.checkpoints}
    found = compare_runs(old, [kept(run) for run in runs])
    delta = Delta(", ".join(path.name for path in paths), notes=list(found.notes))
    delta.losses = [trend for trend in found.trends if trend.worse]
    if found.appeared:
        delta.not_comparable["not in the baseline"] = len(found.appeared)
    for finding in found.findings:
        checkpoint = now[finding.key]
        change = Change(checkpoint, known[finding.key], finding)
        if finding.kind == Kind.NOT_COMPARABLE:
            delta.not_comparable[finding.reasons[0].split(":")[0]] += 1
            continue
        delta.ratios[id(checkpoint)] = change.size
        if finding.worse:
            delta.worse.append(change)
        elif finding.kind == Kind.BETTER:
            delta.better.append(change)
        else:
            delta.unchanged += 1
    delta.worse.sort(key=lambda change: (not change.new_status, -change.size))
    return delta
