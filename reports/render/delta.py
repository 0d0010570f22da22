"""A run beside a baseline: status changes and the ratio of each checkpoint's error."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from reports import baseline
from reports.history.figures import Key
from reports.results import STATUSES, Checkpoint, Run, over, read_runs

# From which ratio of E_T on a difference is listed.
LISTED = 1.5


@dataclass(frozen=True)
class Entry:
    """What a baseline keeps of a checkpoint."""

    status: str
    contract: str
    errors: dict[str, float]  # E_T by output
    bits: str
    golden: str


@dataclass(frozen=True)
class Change:
    """A checkpoint that is not as it was."""

    checkpoint: Checkpoint
    run: Run
    before: Entry
    output: str  # whose error changed most
    ratio: float  # of E_T, after / before

    @property
    def error(self) -> tuple[float, float]:
        """E_T before and now."""
        now = {o.name: o.statistics.error for o in self.checkpoint.outputs}
        return self.before.errors.get(self.output, math.nan), now.get(self.output, math.nan)


@dataclass
class Delta:
    """What changed between a baseline and the runs."""

    name: str
    worse: list[Change] = field(default_factory=list)  # a worse status first, then by ratio
    better: list[Change] = field(default_factory=list)
    ratios: dict[int, float] = field(default_factory=dict)  # by id of the checkpoint object
    unchanged: int = 0
    not_comparable: Counter[str] = field(default_factory=Counter)  # by reason

    @property
    def compared(self) -> int:
        """How many checkpoints both have."""
        return len(self.ratios)


def read_baseline(path: Path) -> dict[Key, Entry]:
    """Entries of a baseline or of a result file. ValueError names file, line and field."""
    if not baseline.is_baseline(path):
        return {
            _key(checkpoint, run): _entry(checkpoint)
            for run in read_runs([path])
            for checkpoint in run.checkpoints
        }
    return {
        key: Entry(
            kept.status, kept.contract,
            {name: output.error for name, output in kept.outputs.items()}, kept.bits, kept.golden,
        )
        for key, kept in baseline.read(path).checkpoints.items()
    }  # fmt: skip


def _key(checkpoint: Checkpoint, run: Run) -> Key:
    return Key(
        checkpoint.recording, checkpoint.checkpoint, checkpoint.device, checkpoint.dtype, run.fused,
    )  # fmt: skip


def _entry(checkpoint: Checkpoint) -> Entry:
    return Entry(
        checkpoint.status, checkpoint.contract,
        {output.name: output.statistics.error for output in checkpoint.outputs},
        checkpoint.output_sha256[:16], checkpoint.golden_sha256[:16],
    )  # fmt: skip


def _largest(before: Entry, now: Entry) -> tuple[str, float]:
    """The output whose error changed most, and its ratio; ("", 1) where none has an error."""
    ratios = {
        name: over(now.errors[name], error) if (now.errors[name], error) != (0, 0) else 1.0
        for name, error in before.errors.items()
        if name in now.errors
    }
    ratios = {name: ratio for name, ratio in ratios.items() if not math.isnan(ratio)}

    def distance(name: str) -> float:
        return abs(math.log(ratios[name])) if 0 < ratios[name] < math.inf else math.inf

    name = max(ratios, key=distance, default="")
    return name, ratios.get(name, 1.0)


def _why_not(before: Entry, now: Entry) -> str:
    if before.golden != now.golden:
        return "the recording has changed"
    if before.contract != now.contract:
        return "the contract has changed"
    return ""


def compare(runs: list[Run], path: Path) -> Delta:
    """The runs beside the baseline in `path`."""
    known = read_baseline(path)
    delta = Delta(path.name)
    for run in runs:
        for checkpoint in run.checkpoints:
            before = known.get(_key(checkpoint, run))
            if before is None:
                delta.not_comparable["not in the baseline"] += 1
                continue
            now = _entry(checkpoint)
            worse_status = STATUSES.index(now.status) - STATUSES.index(before.status)
            reason = "" if worse_status else _why_not(before, now)
            if reason:
                delta.not_comparable[reason] += 1
                continue
            name, ratio = _largest(before, now)
            delta.ratios[id(checkpoint)] = ratio
            change = Change(checkpoint, run, before, name, ratio)
            if worse_status < 0 or (worse_status == 0 and ratio > LISTED):
                delta.worse.append(change)
            elif worse_status > 0 or ratio < 1 / LISTED:
                delta.better.append(change)
            else:
                delta.unchanged += 1
    for changes, sign in ((delta.worse, -1.0), (delta.better, 1.0)):
        changes.sort(key=lambda c: (c.before.status == c.checkpoint.status, sign * c.ratio))
    return delta
