"""Kernels whose outputs are large: judged by chosen rows, and by those that are furthest off."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .inputs import Case
from .verdict import Verdict

if TYPE_CHECKING:
    from ..recorder.large import InRows
    from ..recorder.one_call import Arguments
    from .calling import Calls, Run

Judge = Callable[[Sequence[int], "Calls"], Verdict]
"""Judges calls of these rows as what they are."""


@dataclass(frozen=True)
class LargeCall:
    """A case whose chosen rows are prepared."""

    rows: InRows
    arguments: Arguments

    def chosen(self, calls: Calls) -> Calls:
        """What a kernel made of the chosen rows."""
        return self._of(calls, self.rows.at)

    def case_of(self, case: Case, at: Sequence[int]) -> Case:
        """These rows of the case as one of their own."""
        return replace(case, arguments=self.rows.rows.of(self.arguments, at))

    def judged(self, calls: Calls, verdict: Verdict, judge: Judge) -> Verdict:
        """The verdict on the whole, of which that on the chosen rows is there."""
        rows, chosen = self.rows, self.rows.at
        if verdict.status not in ("pass", "blind"):
            return self._told(calls, verdict, chosen)
        more = 0
        for run in (calls.first, calls.again):
            for at in self._beyond(run):
                found = judge(at, self._of(type(calls)(run), at) if run else calls)
                if found.status not in ("pass", "blind"):
                    return self._told(calls, found, at)
                more += len(at)
        furthest = f", {more} more that are the furthest off" if more else ""
        words = (
            f"{len(chosen)} of {rows.rows.count} rows{furthest} judged with simulated kernels, "
            f"all {rows.size} elements compared with float64"
        )
        return replace(verdict, reason="; ".join(filter(None, (verdict.reason, words))))

    def _fits(self, run: Run) -> bool:
        return all(it.shape == self.rows.shapes[name] for name, it in run.outputs.items())

    def _beyond(self, run: Run | None) -> list[list[int]]:
        """Rows that have to be judged, as many as can be at once."""
        from ..recorder.tensors_of_outputs import as_tensor

        outputs = {
            name: as_tensor(it)
            for name, it in (run.outputs if run else {}).items()
            if it.shape == self.rows.shapes[name]
        }
        found = self.rows.beyond(self.arguments, outputs) if outputs else []
        step = self.rows.at_once
        return [sorted(found[i : i + step]) for i in range(0, len(found), step)]

    def _of(self, calls: Calls, at: Sequence[int]) -> Calls:
        again = None if calls.again is None else self._run_of(calls.again, at)
        return replace(calls, first=self._run_of(calls.first, at), again=again)

    def _run_of(self, run: Run, at: Sequence[int]) -> Run:
        from ..recorder.tensors_of_outputs import as_tensor

        shapes, faults, fit = self.rows.shapes, list(run.faults), {}
        for name, output in run.outputs.items():
            if output.shape == shapes[name]:
                fit[name] = as_tensor(output)
            else:
                faults.append(
                    f"{name} is {list(output.shape)}, `like` returns {list(shapes[name])}"
                )
        return replace(run, outputs=self.rows.of(fit, at), faults=faults)

    def _told(self, calls: Calls, verdict: Verdict, at: Sequence[int]) -> Verdict:
        """With the places that rows have in the whole."""
        rows = self.rows
        labels = {n: ref.labels or () for n, ref in rows.kept.checkpoint.outputs.items()}
        places = Places(rows.rows.axis, tuple(at), rows.rows.count, frozenset(
            of[rows.rows.axis] for of in labels.values() if of and of[rows.rows.axis]
        ))  # fmt: skip
        reason = places.words(verdict.reason)
        if not calls.faults and not calls.unstable and self._fits(calls.first):
            named = ", ".join(map(str, at[:4])) + (f", ... {at[-1]}" if len(at) > 4 else "")
            several = "s" if len(at) > 1 else ""
            words = f"of row{several} {named} of {rows.rows.count}, judged alone"
            reason = "; ".join(filter(None, (reason, words)))
        return replace(verdict, reason=reason, figures=places.of(verdict.figures))


_PLACE = re.compile(r"\[([^\[\]]*)\] of \[([0-9, ]+)\]")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Places:
    """From places among some rows to places in the whole."""

    axis: int
    at: tuple[int, ...]
    count: int
    labels: frozenset[str] = frozenset()
    """What the axis is called."""

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.words(value)
        if isinstance(value, dict):
            return {key: self.of(item) for key, item in value.items()}
        return [self.of(item) for item in value] if isinstance(value, list) else value

    def words(self, text: str) -> str:
        text = _PLACE.sub(self._in_shape, text)
        text = re.sub(r"\bat \((\d+(?:, \d+)*)\)", self._at, text)
        pattern = rf"\baxis {self.axis}: ([\d., ]+?) of {len(self.at)}\b"
        text = re.sub(pattern, lambda it: f"axis {self.axis}: {self._all(it[1])} of {self.count}",
                      text)  # fmt: skip
        for label in self.labels:
            pattern = rf"(?<=\b{re.escape(label)} )\d+(?:(?:\.\.|, )\d+)*"
            text = re.sub(pattern, lambda it: self._all(it[0]), text)
        return text

    def _all(self, numbers: str) -> str:
        return _NUMBER.sub(lambda it: str(self._whole(int(it[0]))), numbers)

    def _whole(self, row: int) -> int:
        return self.at[row] if row < len(self.at) else row

    def _at(self, found: re.Match[str]) -> str:
        where = [int(it) for it in found[1].split(", ")]
        if len(where) > self.axis:
            where[self.axis] = self._whole(where[self.axis])
        return f"at ({', '.join(map(str, where))})"

    def _in_shape(self, found: re.Match[str]) -> str:
        where, shape = (part.split(", ") for part in found.groups())
        if len(where) != len(shape) or int(shape[self.axis]) != len(self.at):
            return found[0]
        where[self.axis] = self._all(where[self.axis])
        shape[self.axis] = str(self.count)
        return f"[{', '.join(where)}] of [{', '.join(shape)}]"
