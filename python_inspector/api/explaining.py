"""What check() adds to verdicts: the bug that a failure is, and bugs that a pass is blind to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..format.operands import Output, save
from .keeping import CALL, OUTPUTS
from .verdict import Verdict

if TYPE_CHECKING:
    from ..recorder.explanation import BlindSpots
    from ..recorder.one_call import Kept

Judging = Callable[[Path, Path], list[Verdict]]
Another = Callable[[Path], AbstractContextManager[Any]]
"""Makes another recording of the same calls in a folder."""


class Explainer:
    """Bugs planted in the calls of one check(), as long as `explain` says."""

    def __init__(
        self,
        kept: Sequence[Kept],
        judge: Judging,
        explain: bool | float,
        *,
        every: bool,
        measures: bool,
    ) -> None:
        """`every`: all kinds of bugs that would pass are told, without a limit of time. `measures`:
        figures alone may decide."""
        from ..trace.planting import MOST_BUGS
        from ..trace.trials import SECONDS, Deadline

        self._kept = {call.checkpoint.id: call for call in kept}
        self._results: dict[str, Output] = {}
        self._judge, self._every, self._measures = judge, every, measures
        seconds = SECONDS if explain is True else float(explain)
        self._deadline = Deadline(None if every else seconds)
        self._most = MOST_BUGS if seconds > 0 or every else 0
        self._blind: BlindSpots | None = None

    def judged(
        self,
        outputs: Sequence[Mapping[str, Output]],
        folder: Path,
        another: Another,
        name: str = OUTPUTS,
    ) -> dict[str, Verdict]:
        """By checkpoint the verdict on the outputs of each call, in order, in the `folder` beside
        their recording; on calls without outputs there is none."""
        verdicts = []
        self._results = {}
        for id, given in zip(self._kept, outputs, strict=True):
            sure = self._pass_of(id, given)
            if sure is None:
                self._results |= {f"{id}/{output}": value for output, value in given.items()}
            else:
                verdicts.append(sure)
        if self._results:
            save(self._results, folder / name)
            verdicts += self._judge(folder / CALL, folder / name)
        return {it.checkpoint: it for it in self.explained(verdicts, another, folder)}

    def _pass_of(self, id: str, outputs: Mapping[str, Output]) -> Verdict | None:
        """Of large outputs, where figures alone decide."""
        if not outputs or not self._measures:
            return None
        from ..recorder.measured import pass_of

        found = pass_of(self._kept[id], outputs)
        return None if found is None else Verdict.of(found)

    def explained(self, verdicts: list[Verdict], another: Another, folder: Path) -> list[Verdict]:
        """The verdicts with what there is to say of each; `another` records in the `folder`."""
        failed = {it.checkpoint: it for it in verdicts if it.status == "fail"}
        if failed:
            again = {it.checkpoint: it for it in self._judged_again(failed, another, folder)}
            verdicts = [again.get(it.checkpoint, it) for it in verdicts]
        if self._every:
            verdicts = [self._with_passing_bugs(it) for it in verdicts]
        if all(it.passed or it.status == "blind" for it in verdicts) and self._most:
            self._look(self._kept[it.checkpoint] for it in verdicts if it.passed)
        return verdicts

    def blinded(self, verdict: Verdict) -> Verdict:
        """The verdict on all cases, with what none of them shows."""
        if self._blind is None:
            return verdict
        return replace(
            verdict,
            blind_to=(*verdict.blind_to, *self._blind.unseen.values()),
            planted=(self._blind.tried, min(self._blind.listed, self._most)),
        )

    def _judged_again(
        self, failed: Mapping[str, Verdict], another: Another, folder: Path
    ) -> list[Verdict]:
        """Beside other ways to round, which may let a kernel pass, and planted bugs."""
        from ..recorder.explanation import alternatives

        told = []
        for i, (id, verdict) in enumerate(failed.items()):
            call, deadline = self._kept[id], self._deadline.share(len(failed) - i)
            if alternatives(call, deadline, most=self._most if _has_numbers(verdict) else 0):
                told.append(call)
        if not told:
            return []
        with another(folder / "explained") as calls:
            for call in told:
                calls.add_again(call)
            calls.commit()
        ids = tuple(f"{call.checkpoint.id}/" for call in told)
        outputs = {name: it for name, it in self._results.items() if name.startswith(ids)}
        save(outputs, folder / "failed.safetensors")
        return self._judge(folder / "explained", folder / "failed.safetensors")

    def _with_passing_bugs(self, verdict: Verdict) -> Verdict:
        from ..recorder.explanation import passing_bugs

        names = passing_bugs(self._kept[verdict.checkpoint], self._most)
        return verdict if names is None else replace(verdict, passing_bugs=tuple(names))

    def _look(self, calls: Iterable[Kept]) -> None:
        """Finds what no call shows: each is only asked for what those before did not."""
        from ..recorder.explanation import blind_spots

        for call in calls:
            before = None if self._blind is None else self._blind.unseen
            if before is not None and not before:
                return
            spots = blind_spots(call, self._deadline, before)
            if self._blind is None:
                self._blind = spots
            elif spots is not None:
                self._blind.unseen = spots.unseen


def _has_numbers(verdict: Verdict) -> bool:
    """Whether an output has any: what is NaN everywhere looks like every bug that overflows."""
    return any(it["classes"]["y"]["finite"] for it in verdict.figures.get("outputs", ()))
