"""The report as Markdown for the summary of a CI run: short, whatever the number of checkpoints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from ..results import NO_FAILURES, STATUSES, Run
from . import overview
from .delta import Delta
from .overview import Cell, FailureGroup, LossGroup
from .words import overall, percent, plural

MOST = 20  # groups of failures, groups of losses
OPEN = 4  # of each are seen at once: the summary of a job is one screen
MOST_ROWS = 200  # of the matrix
_LONGEST = 300  # characters of a name or a reason
# What Markdown, or HTML in it, acts on: "@" names people, "#" issues; an underscore within a word
# has no meaning; addresses become links.
_ACTIVE = re.compile(r"[\\`*\[\]<>#|~$@&]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.", re.IGNORECASE)


def text(words: str) -> str:
    """Words that show as they are, on one line; long ones are cut."""
    words = " ".join(words.split())
    cut = words[:_LONGEST] + ("…" if len(words) > _LONGEST else "")
    return _ACTIVE.sub(lambda found: f"&#{ord(found[0])};", cut)


def fenced(words: str) -> list[str]:
    """A block of code whose fence no run of backticks in it can end."""
    longest = max((len(run) for run in re.findall("`+", words)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}bash", " ".join(words.split("\n")), fence, ""]


def _folded(title: str, lines: list[str]) -> list[str]:
    """Seen by those who open it."""
    return [f"<details><summary>{title}</summary>", "", *lines, "</details>", ""] if lines else []


def _groups(parts: list[list[str]]) -> list[str]:
    """Those in front, and the others folded."""
    seen, others = parts[:OPEN], parts[OPEN:MOST]
    more = [line for part in others for line in part]
    return [line for part in seen for line in part] + [
        *_folded(f"{plural(len(others), 'group')} more", more), *_more(len(parts) - MOST, "group"),
    ]  # fmt: skip


def _more(count: int, what: str) -> list[str]:
    return [f"{plural(count, what)} more: see the HTML report.", ""] if count > 0 else []


def _failure(group: FailureGroup) -> list[str]:
    block, device, dtype = map(text, group.place)
    kind = "" if group.status == "fail" else f" ({text(group.status)})"
    worst = group.worst
    return [
        f"**✕ {block}** on {device}, {dtype}: {group.size}{kind}. "
        f"{text(worst.reason)} ({text(worst.recording)}, {text(worst.checkpoint)})",
        "",
        *(fenced(worst.again) if worst.again else []),
    ]


def _loss(group: LossGroup) -> list[str]:
    block, device, dtype = map(text, group.place)
    worst = group.changes[0]
    share = f"; passes at {percent(worst.checkpoint.ratio)} of its limit"
    return [
        f"**▲ {block}** on {device}, {dtype}: {plural(len(group.changes), 'checkpoint')}, "
        f"{worst.words}{share if worst.checkpoint.status == 'pass' else ''} "
        f"({text(worst.checkpoint.recording)}, {text(worst.checkpoint.checkpoint)}): "
        f"{text('; '.join(worst.finding.reasons[:3]))}",
        "",
        *(fenced(worst.checkpoint.again) if worst.checkpoint.again else []),
    ]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.status in NO_FAILURES:
        judged = f"{'▲ ' if cell.worse else ''}{cell.ratio:.2f}"
        return judged if cell.status == "pass" else f"○ {cell.status}"
    return f"**✕ {sum(n for s, n in cell.counts.items() if s not in NO_FAILURES)}/{cell.of}**"


def _matrix(runs: list[Run], delta: Delta | None) -> list[str]:
    found = overview.matrix(runs, delta)
    heads = [f"{text(device)} {text(dtype)}" for device, dtype in found.columns]
    lines = [
        f"| block | {' | '.join(heads)} |",
        "|---|" + "--:|" * len(heads),
    ]
    for block, cells in list(found.rows.items())[:MOST_ROWS]:
        row = [_cell(cells.get(column)) for column in found.columns]
        lines.append(f"| {text(block)} | {' | '.join(row)} |")
    lines += ["", *_more(len(found.rows) - MOST_ROWS, "block")]
    return _folded("Largest share of a limit, by block", lines)


def _delta(delta: Delta, losses: list[LossGroup]) -> list[str]:
    lines = [f"### Compared with {text(delta.name)}", ""]
    lines += _groups(list(map(_loss, losses)))
    for trend in delta.losses:
        lines += [f"**▲ {text(trend.device)}**: {text(overall(trend))}", ""]
    counts = [
        f"{delta.compared:,} compared", f"{len(delta.worse):,} worse",
        f"{len(delta.better):,} better", f"{delta.unchanged:,} unchanged",
        *(f"{n:,} not compared: {reason}" for reason, n in delta.not_comparable.items()),
    ]  # fmt: skip
    notes = [line for note in delta.notes for line in (text(note), "")]
    return [*lines, "; ".join(counts) + ".", "", *notes]


def _sentences(runs: list[Run]) -> Iterable[str]:
    for run in runs:
        if run.notice:
            yield f"**Incomplete.** {text(run.notice)}"
        yield (
            f"On {text(', '.join(run.header.devices))}; version {text(run.header.version)}, "
            f"{text(run.header.started)}"
        )


def markdown(runs: list[Run], delta: Delta | None) -> str:
    """The document; `delta`: against a baseline, if there is one."""
    counts = Counter(checkpoint.status for checkpoint in overview.checkpoints(runs))
    failed = sum(count for status, count in counts.items() if status not in NO_FAILURES)
    failures = overview.failure_groups(runs)
    losses = overview.loss_groups(delta) if delta else []
    lost = sum(len(group.changes) for group in losses)
    headline = [f"{plural(failed, 'checkpoint')} failed" if failed else "Nothing failed"]
    if lost:
        headline.append(f"{plural(lost, 'checkpoint')} got worse")
    elif delta and delta.losses:
        headline.append("errors grew on the whole")
    lines = [f"## {', '.join(headline)}", ""]
    told = [f"{counts[status]:,} {status}" for status in reversed(STATUSES) if counts[status]]
    lines += [text(", ".join(told)) + ".", ""]
    for sentence in _sentences(runs):
        lines += [sentence, ""]
    if failures:
        lines += ["### Failed", ""]
    lines += _groups(list(map(_failure, failures)))
    if delta:
        lines += _delta(delta, losses)
    lines += _matrix(runs, delta)
    blind = [spot for spot in overview.blind_spots(runs) if not spot.seen]
    if blind:
        names = [f"{spot.block} {spot.feature or '(everything)'}" for spot in blind[:MOST]]
        lines += [f"Seen by no checkpoint: {text(', '.join(names))}.", ""]
    return "\n".join(lines).rstrip("\n") + "\n"
