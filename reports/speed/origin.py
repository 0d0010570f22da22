"""When and on what the lines of a table were measured: a mix of runs must not look like one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from ..json_lines import Line

SESSION = timedelta(hours=6)  # longer than ci/device.sh takes
HEADS = ("run", "rival_run")  # whose lines follow them


def instant(line: Line) -> datetime | None:
    """When its measurement began. TypeError and ValueError for no ISO 8601 time."""
    started = line.get("started")
    return datetime.fromisoformat(started).astimezone(UTC) if started else None


def origin_notes(lines: Iterable[Line]) -> list[str]:
    """When all was measured, and what speaks against one run on one machine."""
    times: list[datetime] = []
    hardware: dict[str, None] = {}
    undated = 0
    for line in lines:
        if time := instant(line):
            times.append(time)
        elif line.get("type") in HEADS:
            undated += 1
        hardware |= dict.fromkeys(line.get("devices", ()))
    notes = []
    if times:
        first, last = min(times), max(times)
        notes.append(f"Measured {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC.")
        if last - first > SESSION:
            notes.append(f"**Not of one run**: {(last - first) / timedelta(hours=1):.0f} hours "
                         "from its first to its last part.")  # fmt: skip
    if undated:
        notes.append(f"**{undated} of its parts do not say when they were measured.**")
    names = [words.split(": ")[0] for words in hardware]
    for name in sorted({name for name in names if names.count(name) > 1}):
        of = "; ".join(words for words in hardware if words.startswith(f"{name}: "))
        notes.append(f"**Not of one machine**: {of}.")
    return notes
