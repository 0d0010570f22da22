"""verdicts_frame(): verdicts as a pandas DataFrame, where pandas is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .. import needs
from .verdict import Verdict

if TYPE_CHECKING:
    import pandas


def verdicts_frame(verdicts: Verdict | Iterable[Verdict]) -> pandas.DataFrame:
    """One row per judged call: what it is, its status, and its gate nearest to a limit.

    Cases of a verdict of check() have a row each. Needs pandas.
    """
    needs.require("verdicts_frame()", "pandas")
    import pandas

    given = [verdicts] if isinstance(verdicts, Verdict) else verdicts
    return pandas.DataFrame([_row(verdict) for verdict in _each(given)], columns=list(_COLUMNS))


_COLUMNS = (
    "checkpoint", "block", "status", "output", "gate", "statistic", "limit", "ratio", "where",
    "rounding", "known_bug", "golden_suspect", "passing_bugs", "reason",
)  # fmt: skip


def _each(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    for verdict in verdicts:
        yield from verdict.cases or (verdict,)


def _row(verdict: Verdict) -> dict[str, Any]:
    gate = verdict.worst_gate or {}
    row = {name: getattr(verdict, name) for name in _COLUMNS if hasattr(verdict, name)}
    row |= {name: gate.get(name) for name in ("output", "ratio", "where")}
    row |= {name: float(gate[name]) for name in ("statistic", "limit") if name in gate}
    bugs = verdict.passing_bugs
    return row | {"gate": gate.get("name"), "passing_bugs": None if bugs is None else len(bugs)}
