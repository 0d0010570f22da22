"""Compares what two runs, or two sets of repeated runs, measured: rules.py, pair by pair."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..results import STATUSES
from . import rules
from .figures import Checkpoint, Key, Run
from .machine import Moved, moved
from .significance import sign_test

TREND_CHANCE = 0.01  # of the sign test over the checkpoints that changed
TREND_GROWTH = 1.01  # a mean change below a percent is said and does not count


class Kind(Enum):
    """What became of a checkpoint, or of a device's checkpoints together."""

    UNCHANGED = "unchanged"  # the same bits
    WITHIN = "changed within what is allowed"
    WORSE = "worse"
    DRIFT = "drift"  # no figure is worse, the mean error of the elements is
    BETTER = "better"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Finding:
    """What became of one checkpoint, and why."""

    key: Key
    block: str
    kind: Kind
    reasons: tuple[str, ...]
    ratio: float = math.nan  # E_T, new over old: the geometric mean over outputs with errors
    new_verdict: bool = False  # its status is another one

    @property
    def worse(self) -> bool:
        return self.kind in (Kind.WORSE, Kind.DRIFT)


@dataclass(frozen=True)
class Trend:
    """All checkpoints of a device whose E_T changed, together."""

    device: str
    changed: int
    grown: int
    mean: float  # geometric, of E_T new over old
    chance: float  # of so many grown by chance

    @property
    def worse(self) -> bool:
        return self.chance < TREND_CHANCE and self.mean > TREND_GROWTH


@dataclass(frozen=True)
class Comparison:
    """What changed between two sides. Lists are ordered by checkpoint."""

    old: str
    new: str
    findings: Sequence[Finding]
    appeared: Sequence[Key]
    vanished: Sequence[Key]
    trends: Sequence[Trend]
    notes: Sequence[str] = field(default_factory=tuple)  # what could not be evaluated, and why

    def of(self, *kinds: Kind) -> list[Finding]:
        """The findings of these kinds."""
        return [finding for finding in self.findings if finding.kind in kinds]

    @property
    def got_worse(self) -> bool:
        trend = any(trend.worse for trend in self.trends)
        return trend or any(finding.worse for finding in self.findings)

    @property
    def comparable(self) -> int:
        """Checkpoints of which something can be said."""
        return len(self.findings) - len(self.of(Kind.NOT_COMPARABLE))


def compare(old: Sequence[Run], new: Sequence[Run]) -> Comparison:
    """What got worse, better, or cannot be compared between two sides of one or more runs.

    Several runs of a side are repetitions: where their bits differ, medians are compared.
    """
    before, now = _samples(old), _samples(new)
    elsewhere = moved(old, new)
    findings = [
        _unless_moved(_judge(key, before[key], now[key]), elsewhere.get(key.device))
        for key in sorted(before.keys() & now.keys())
    ]
    return Comparison(
        old=_names(old),
        new=_names(new),
        findings=findings,
        appeared=sorted(now.keys() - before.keys()),
        vanished=sorted(before.keys() - now.keys()),
        trends=_trends(findings),
        notes=(
            *_moved_notes(findings, elsewhere),
            *_notes(before, now),
            *_unmeasured(findings, before, now),
        ),
    )


def _unless_moved(finding: Finding, elsewhere: Moved | None) -> Finding:
    """What only figures say is nothing where the machine is another one; verdicts hold on all."""
    figures = (Kind.WITHIN, Kind.WORSE, Kind.DRIFT, Kind.BETTER)
    if elsewhere is None or finding.kind not in figures or finding.new_verdict:
        return finding
    return Finding(finding.key, finding.block, Kind.NOT_COMPARABLE, (elsewhere.words,))


def _moved_notes(findings: Sequence[Finding], elsewhere: Mapping[str, Moved]) -> Iterable[str]:
    for device, found in sorted(elsewhere.items()):
        lost = sum(f.key.device == device and f.reasons == (found.words,) for f in findings)
        yield (
            f"{found.words}: figures of {lost} checkpoint"
            f"{'' if lost == 1 else 's'} whose bits changed are not compared; "
            "verdicts are. Compare with a run on the same machine"
            + (", or force one: PLUMB_ISA" if found.what == "instruction set" else "")
        )


def _samples(runs: Sequence[Run]) -> dict[Key, list[Checkpoint]]:
    samples: dict[Key, list[Checkpoint]] = defaultdict(list)
    for run in runs:
        for key, checkpoint in run.checkpoints.items():
            samples[key].append(checkpoint)
    return samples


def _names(runs: Sequence[Run]) -> str:
    names = dict.fromkeys(run.name for run in runs)
    return ", ".join(names) if len(names) <= 2 else f"{next(iter(names))} and {len(names) - 1} more"


def _judge(key: Key, old: list[Checkpoint], new: list[Checkpoint]) -> Finding:
    kind, reasons = _verdict(old, new)
    first, last = old[0], new[-1]
    if kind not in (Kind.UNCHANGED, Kind.NOT_COMPARABLE) and first.impl != last.impl:
        ran = ", ".join(name for name in last.impl if name not in first.impl) or "less"
        instead = ", ".join(name for name in first.impl if name not in last.impl) or "less"
        reasons = [*reasons, f"ran {ran} instead of {instead}"]
    ratio = math.nan
    if kind in (Kind.WITHIN, Kind.WORSE, Kind.DRIFT, Kind.BETTER) and _same_kind(old + new):
        ratio = _ratio(first, last)
    changed = {c.status for c in old} != {c.status for c in new}
    return Finding(key, last.block, kind, tuple(reasons), ratio, changed)


def _verdict(old: list[Checkpoint], new: list[Checkpoint]) -> tuple[Kind, list[str]]:
    """The status decides first: a verdict can change over equal bits and another recording."""
    before = max((c.status for c in old), key=_severity)
    now = max((c.status for c in new), key=_severity)
    if _severity(now) > _severity(before):
        figures = rules.broken(rules.WORSE, old[0], new[-1]) if _same_kind(old + new) else []
        return Kind.WORSE, [f"was {before}, is {now}", *figures]
    stable = all(_same_hashes([c.bits for c in side]) for side in (old, new))
    if before == now and stable and _same_hashes([old[0].bits, new[0].bits]):
        return Kind.UNCHANGED, []
    for name, one, other in (
        ("recording", {c.golden[:16] for c in old}, {c.golden[:16] for c in new}),
        ("contract", {c.contract for c in old}, {c.contract for c in new}),
        ("outputs", {_outputs(c) for c in old}, {_outputs(c) for c in new}),
    ):
        if len(one | other) > 1:
            words = " and ".join(sorted(str(value) for value in one ^ other or one))
            return Kind.NOT_COMPARABLE, [f"another {name}: {words}"]
    if before != now:
        if now == "pass":
            return Kind.BETTER, [f"was {before}, is {now}"]
        return Kind.NOT_COMPARABLE, [f"was {before}, is {now}"]
    if stable and not any(c.loose for c in old + new):
        return _figures(old, new)
    return _repeated(old, new)


def _outputs(checkpoint: Checkpoint) -> str:
    return ", ".join(sorted(checkpoint.outputs)) or "none"


def _severity(status: str) -> int:
    """Of a newer program's status: more than all."""
    return -STATUSES.index(status) if status in STATUSES else 1


def _same_hashes(hashes: Iterable[str]) -> bool:
    """Equal as far as all go: baselines keep the first digits."""
    known = list(hashes)
    shortest = min(map(len, known)) or max(map(len, known))
    return len({digits[:shortest] for digits in known}) == 1


def _same_kind(checkpoints: list[Checkpoint]) -> bool:
    return len({(c.golden[:16], c.contract) for c in checkpoints}) == 1


def _figures(old: list[Checkpoint], new: list[Checkpoint]) -> tuple[Kind, list[str]]:
    """Deterministic and changed: every difference is real."""
    before, now = old[0], new[-1]
    for rule, kind, one, other in (
        (rules.WORSE, Kind.WORSE, before, now),
        (rules.DRIFT, Kind.DRIFT, before, now),
        ((*rules.WORSE, *rules.DRIFT), Kind.BETTER, now, before),
    ):
        reasons = rules.broken(rule, one, other)
        if reasons:
            return kind, rules.improvements(before, now) if kind == Kind.BETTER else reasons
    return Kind.WITHIN, []


def _repeated(old: list[Checkpoint], new: list[Checkpoint]) -> tuple[Kind, list[str]]:
    """Not deterministic: medians."""
    if min(len(old), len(new)) < rules.RUNS:
        return Kind.NOT_COMPARABLE, [
            f"repeated runs gave different bits: {rules.RUNS} runs of each side are needed, "
            f"there are {len(old)} and {len(new)}"
        ]
    if reasons := rules.grown_over_runs(old, new):
        return Kind.WORSE, reasons
    if rules.grown_over_runs(new, old):
        return Kind.BETTER, rules.improvements(old[0], new[-1])
    return Kind.WITHIN, []


def _ratio(old: Checkpoint, new: Checkpoint) -> float:
    pairs = [(old.outputs[n].error, new.outputs[n].error) for n in old.outputs if n in new.outputs]
    logs = [math.log(b / a) for a, b in pairs if 0 < a < math.inf and 0 < b < math.inf]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _trends(findings: Sequence[Finding]) -> list[Trend]:
    by_device: Mapping[str, list[float]] = defaultdict(list)
    for finding in findings:
        if finding.ratio > 0 and finding.ratio != 1:
            by_device[finding.key.device].append(finding.ratio)
    return [
        Trend(
            device, len(ratios), grown := sum(ratio > 1 for ratio in ratios),
            math.exp(sum(map(math.log, ratios)) / len(ratios)), sign_test(grown, len(ratios)),
        )
        for device, ratios in sorted(by_device.items())
    ]  # fmt: skip


def _unmeasured(
    findings: Sequence[Finding],
    old: Mapping[Key, list[Checkpoint]], new: Mapping[Key, list[Checkpoint]],
) -> Iterable[str]:  # fmt: skip
    """That a change may be one from run to run, where neither side says that there is none."""
    changed = [f.key for f in findings if f.kind not in (Kind.UNCHANGED, Kind.NOT_COMPARABLE)]
    bare = sum(
        all(c.determinism not in ("D0", "D1") for c in (*old[key], *new[key])) for key in changed
    )
    if bare:
        yield (
            f"of {bare} checkpoints that changed neither side has measured whether they repeat: "
            "a change there may be chance"
        )


def _notes(
    old: Mapping[Key, list[Checkpoint]], new: Mapping[Key, list[Checkpoint]]
) -> Iterable[str]:
    for side, samples in (("older", old), ("newer", new)):
        bare = sum(
            any(o.octaves is None for c in checkpoints for o in c.outputs.values())
            for checkpoints in samples.values()
        )
        if bare:
            yield (
                f"the {side} side keeps no histogram of {bare} checkpoints: "
                "tail and drift are not judged there"
            )
