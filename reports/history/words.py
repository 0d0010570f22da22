"""A comparison in words, for a terminal: whatever a recording names is data there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ..terminal import printable
from .compare import Comparison, Finding, Kind, Trend
from .figures import Key

_SHOWN = 20

_TITLES = (
    ((Kind.WORSE,), "WORSE"),
    ((Kind.DRIFT,), "DRIFT"),
    ((Kind.BETTER,), "BETTER"),
    ((Kind.NOT_COMPARABLE,), "NOT COMPARABLE"),
)


def place(key: Key) -> str:
    """A checkpoint in words."""
    fused = "" if key.fused else " --no-fuse"
    return printable(f"{key.recording}  {key.checkpoint}  {key.device} {key.dtype}{fused}")


def in_words(comparison: Comparison, every: bool = False) -> str:
    """What got worse, better, or cannot be compared; `every`: without leaving any out."""
    return "\n".join(_lines(comparison, every)) + "\n"


def _lines(comparison: Comparison, every: bool) -> Iterator[str]:
    yield printable(f"{comparison.new} against {comparison.old}")
    counts = {kind: len(comparison.of(kind)) for kind in Kind}
    said = [f"{count} {kind.value}" for kind, count in counts.items() if count]
    yield f"{len(comparison.findings)} checkpoints in both: {', '.join(said) or 'none'}"
    for kinds, title in _TITLES:
        findings = sorted(comparison.of(*kinds), key=_most_changed_first)
        yield from _section(title, findings, every)
    for title, keys in (("APPEARED", comparison.appeared), ("VANISHED", comparison.vanished)):
        yield from _keys(title, keys, every)
    yield ""
    yield from map(trend_in_words, comparison.trends)
    yield from comparison.notes
    yield _conclusion(comparison)


def trend_in_words(trend: Trend) -> str:
    """A device's checkpoints together, in a line."""
    verdict = "WORSE" if trend.worse else "no loss beyond chance"
    return (
        f"{printable(trend.device)}: of {trend.changed} errors that changed {trend.grown} "
        f"grew, {trend.mean:.3g}x in the mean (chance {trend.chance:.2g}): {verdict}"
    )


def _most_changed_first(finding: Finding) -> tuple[float, Key]:
    """Changed verdicts come before figures."""
    return (-math.inf if math.isnan(finding.ratio) else -finding.ratio, finding.key)


def _section(title: str, findings: Sequence[Finding], every: bool) -> Iterator[str]:
    if not findings:
        return
    yield f"\n{title} ({len(findings)})"
    shown = findings if every else findings[:_SHOWN]
    for finding in shown:
        yield f"  {printable(finding.block)}  {place(finding.key)}"
        for reason in finding.reasons:
            yield f"      {printable(reason)}"
    yield from _left_out(findings, shown)


def _keys(title: str, keys: Sequence[Key], every: bool) -> Iterator[str]:
    if not keys:
        return
    yield f"\n{title} ({len(keys)})"
    shown = keys if every else keys[: _SHOWN // 4]
    for key in shown:
        yield f"  {place(key)}"
    yield from _left_out(keys, shown)


def _left_out(whole: Sequence[object], shown: Sequence[object]) -> Iterable[str]:
    if len(shown) < len(whole):
        yield f"  and {len(whole) - len(shown)} more: --all"


def _conclusion(comparison: Comparison) -> str:
    if comparison.got_worse:
        return "worse"
    if not comparison.comparable:
        return "nothing could be compared"
    return "no worse"
