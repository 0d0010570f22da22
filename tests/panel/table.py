"""What a panel found, for people: a line per alarm, totals, and how rare an alarm must be."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tests.panel.trial import Alarm, Trial

CONFIDENCE = 0.95


def upper_bound(count: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The rate above which so few of so many would be a surprise (Clopper-Pearson, one-sided).

    Of none at all it is 1 - (1 - confidence)^(1 / trials), about 3 / trials.
    """
    if count >= trials:
        return 1.0
    low, high = count / trials, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if _at_most(count, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(count: int, trials: int, rate: float) -> float:
    """The chance of `count` or fewer events."""
    if rate >= 1:
        return 0.0
    return math.fsum(
        math.exp(
            math.lgamma(trials + 1)
            - math.lgamma(k + 1)
            - math.lgamma(trials - k + 1)
            + (k * math.log(rate) if k else 0.0)
            + (trials - k) * math.log1p(-rate)
        )
        for k in range(count + 1)
    )


def lines_of(trial: Trial, seed: int, options: Sequence[str] = ()) -> list[str]:
    """What failed of a recording, and the command (with `options`) that does it again."""
    if trial.is_clean:
        return []
    out = [f"{trial.index}: {trial.about}"]
    if trial.broken:
        out.append(f"  broken: {trial.broken}")
    out += [f"  not noticed: {edit}" for edit in trial.survived]
    for alarm, count in _alike(trial.alarms):
        more = f" (and {count - 1} more of this kind)" if count > 1 else ""
        way = alarm.device + ("" if alarm.fused else " --no-fuse")
        way += "" if alarm.dtype == trial.dtype else f" --dtype {alarm.dtype}"
        out.append(f"  {way}: {alarm.block} {alarm.checkpoint}: {alarm.reason}{more}")
        out.append(f"    {alarm.again}")
    words = ["ci/panel", "--seed", str(seed), "--only", str(trial.index), *options]
    return [*out, f"  again: {shlex.join(words)}"]


def _alike(alarms: Iterable[Alarm]) -> list[tuple[Alarm, int]]:
    """The worst alarm of every way, block and gate."""
    worst: dict[tuple[Any, ...], Alarm] = {}
    count: Counter[tuple[Any, ...]] = Counter()
    for alarm in alarms:
        key = (alarm.device, alarm.fused, alarm.block, alarm.gate)
        count[key] += 1
        if key not in worst or alarm.excess > worst[key].excess:
            worst[key] = alarm
    return [(alarm, count[key]) for key, alarm in worst.items()]


def summary(trials: Sequence[Trial]) -> dict[str, Any]:
    """The figures of a panel. Every failure of correct code is a false alarm."""
    recorded = [t for t in trials if not t.skipped]
    kinds: dict[tuple[str, str, str], list[tuple[int, Alarm]]] = {}
    for trial in recorded:
        for alarm in trial.alarms:
            key = (alarm.block, alarm.gate, alarm.dtype)
            kinds.setdefault(key, []).append((trial.index, alarm))
    judged = sum(t.judged for t in recorded)
    of_checkpoints = sum(a.block != "model" for t in recorded for a in t.alarms)
    chains = sum(t.chains for t in recorded)
    of_chains = sum(a.block == "model" for t in recorded for a in t.alarms)
    bad = sum(bool(t.alarms or t.broken) for t in recorded)
    survived = Counter(edit for t in recorded for edit in t.survived)
    return {
        "recordings": _rate(bad, len(recorded)),
        "checkpoints": _rate(of_checkpoints, judged),
        "chains": _rate(of_chains, chains),
        "edits": {"of": sum(t.edits for t in recorded), "survived": dict(survived)},
        "statuses": dict(sum((Counter(t.statuses) for t in recorded), Counter[str]())),
        "skipped": dict(Counter(t.skipped for t in trials if t.skipped)),
        "broken": [t.index for t in trials if t.broken],
        "kinds": [
            {
                "block": block,
                "gate": gate,
                "dtype": dtype,
                "alarms": len(found),
                "recordings": sorted({index for index, _ in found}),
                "worst": max(alarm.excess for _, alarm in found),
            }
            for (block, gate, dtype), found in sorted(kinds.items())
        ],
    }


def _rate(alarms: int, of: int) -> dict[str, Any]:
    return {"alarms": alarms, "of": of, "bound": upper_bound(alarms, of) if of else 1.0}


def text_of(figures: dict[str, Any]) -> str:
    """The summary as a table."""
    out = [f"{'':12} {'judged':>8} {'false alarms':>13} {'rate below, 95 % sure':>22}"]
    for name in ("recordings", "checkpoints", "chains"):
        row = figures[name]
        out.append(f"{name:12} {row['of']:8} {row['alarms']:13} {100 * row['bound']:20.3g} %")
    out.append(", ".join(f"{n} {status}" for status, n in sorted(figures["statuses"].items())))
    if edits := figures["edits"]["of"]:
        survived = figures["edits"]["survived"]
        named = ", ".join(f"{count} x {edit}" for edit, count in sorted(survived.items()))
        out.append(f"{edits} edits, {edits - sum(survived.values())} noticed")
        out += [f"not noticed: {named}"] if named else []
    if figures["kinds"]:
        out.append("")
        out.append(
            f"{'block':18} {'gate':12} {'dtype':5} {'alarms':>6} {'worst/limit':>12}  recordings"
        )
    for kind in figures["kinds"]:
        listed = ", ".join(map(str, kind["recordings"][:6]))
        more = ", ..." if len(kind["recordings"]) > 6 else ""
        out.append(
            f"{kind['block']:18} {kind['gate']:12} {kind['dtype']:5} {kind['alarms']:6} "
            f"{kind['worst']:12.3g}  {listed}{more}"
        )
    for reason, count in figures["skipped"].items():
        out.append(f"skipped {count}: {reason}")
    if figures["broken"]:
        out.append(f"broken: {', '.join(map(str, figures['broken']))}")
    return "\n".join(out)


def as_json(trials: Iterable[Trial], figures: dict[str, Any], seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "summary": figures,
        "trials": [asdict(trial) for trial in trials],
    }
