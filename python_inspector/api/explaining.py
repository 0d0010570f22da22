"""What check() adds to verdicts: the bug that a failure is, and bugs that a pass is blind to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..format.operands import Output
from .case_files import by_key
from .keeping import OUTPUTS
from .verdict import Verdict

if TYPE_CHECKING:
    from ..recorder.explanation import BlindSpots
    from ..recorder.one_call import Kept
    from ..trace.judgement import Judgement
    from .case_files import CaseFiles

Outputs = Mapping[str, Output]


class Seen:
    """What is known of calls whichever kernel is judged: bugs that they do not show."""

    def __init__(self) -> None:
        self.spots: dict[tuple[str, ...], BlindSpots | None] = {}
        """By the calls that passed."""
        self.passing: dict[str, list[str] | None] = {}
        """By call all bugs that would pass."""


class Explainer:
    """Bugs planted in the calls of one check(), as long as `explain` says."""

    def __init__(
        self,
        kept: Sequence[Kept],
        files: CaseFiles,
        seen: Seen,
        explain: bool | float,
        *,
        every: bool,
        measures: bool,
    ) -> None:
        """`every`: all kinds of bugs that would pass are named, without a limit of time.
        `measures`: figures alone may decide."""
        from ..trace.planting import MOST_BUGS
        from ..trace.trials import SECONDS, Deadline

        self._kept = {call.checkpoint.id: call for call in kept}
        self._files, self._seen = files, seen
        self._every, self._measures = every, measures
        seconds = SECONDS if explain is True else float(explain)
        self.deadline = Deadline(None if every else seconds)
        self._most = MOST_BUGS if seconds > 0 or every else 0
        self._blind: BlindSpots | None = None

    def judged(
        self, outputs: Sequence[Outputs], name: str = OUTPUTS, *, looks: bool = True
    ) -> dict[str, Verdict]:
        """By checkpoint the verdict on the outputs of each call, in order, which are files of that
        name then; on calls without outputs there is none. `looks`: what a pass is blind to is
        sought."""
        verdicts: dict[str, Verdict] = {}
        failed: dict[str, Outputs] = {}
        unsure: dict[str, Outputs] = {}
        for id, given in zip(self._kept, outputs, strict=True):
            if not given:
                continue
            sure = self._pass_of(id, given)
            if isinstance(sure, Verdict):
                verdicts[id] = sure
            elif sure is False or self._fails(id, given):
                failed[id] = given
            else:
                unsure[id] = given
        verdicts |= self._judge(unsure, name)
        failed |= {id: it for id, it in unsure.items() if verdicts[id].status == "fail"}
        verdicts |= self._explained(failed, verdicts, name)
        if self._every:
            verdicts = {id: self._with_passing_bugs(it) for id, it in verdicts.items()}
        told = [verdicts[id] for id in self._kept if id in verdicts]
        if all(it.passed or it.status == "blind" for it in told) and self._most and looks:
            self._look(tuple(it.checkpoint for it in told if it.passed))
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

    def _judge(self, outputs: Mapping[str, Outputs], name: str) -> dict[str, Verdict]:
        if not outputs:
            return {}
        return {it.checkpoint: it for it in self._files.judge(by_key(outputs), name)}

    def _pass_of(self, id: str, outputs: Outputs) -> Verdict | bool | None:
        """Where figures alone decide; False of a failure."""
        if not self._measures:
            return None
        from ..recorder.measured import pass_of

        found = pass_of(self._kept[id], outputs, wanted=bool(self._most))
        return Verdict.of(found) if isinstance(found, dict) else found

    def _fails(self, id: str, outputs: Outputs) -> bool:
        """Whether a failure is to be explained before it is judged."""
        from ..recorder.measured import fails, is_large

        kept = self._kept[id]
        wanted = self._most or (self._measures and is_large(kept))
        return bool(wanted) and fails(kept, outputs)

    def _explained(
        self, failed: Mapping[str, Outputs], judged: Mapping[str, Verdict], name: str
    ) -> dict[str, Verdict]:
        """Verdicts with other ways to round, which may let a kernel pass, and planted bugs; of
        calls that have none of them and are not `judged` yet, too."""
        from ..recorder.explanation import alternatives

        found, plain, verdicts = {}, {}, {}
        for i, (id, outputs) in enumerate(failed.items()):
            deadline = self.deadline.share(len(failed) - i)
            most = self._most if _has_numbers(outputs) else 0
            judgement = alternatives(self._kept[id], outputs, deadline, most=most)
            if (sure := self._failure_of(id, outputs, judgement)) is not None:
                verdicts[id] = sure
            elif judgement is not None:
                found[id] = (self._kept[id], judgement)
            elif id not in judged:
                plain[id] = outputs
        verdicts |= self._judge(plain, name)
        if found:
            explained = by_key({id: failed[id] for id in found})
            told = self._files.judge_explained(explained, list(found.values()), name)
            verdicts |= {it.checkpoint: it for it in told}
        return verdicts

    def _failure_of(self, id: str, outputs: Outputs, judgement: Judgement | None) -> Verdict | None:
        """Where figures alone decide."""
        if not self._measures:
            return None
        from ..recorder.measured import failure_of

        found = failure_of(self._kept[id], outputs, judgement, wanted=bool(self._most))
        return None if found is None else Verdict.of(found)

    def _with_passing_bugs(self, verdict: Verdict) -> Verdict:
        from ..recorder.explanation import passing_bugs

        id = verdict.checkpoint
        if id not in self._seen.passing:
            self._seen.passing[id] = passing_bugs(self._kept[id], self._most)
        names = self._seen.passing[id]
        return verdict if names is None else replace(verdict, passing_bugs=tuple(names))

    def _look(self, calls: tuple[str, ...]) -> None:
        """Finds what no call shows."""
        if calls not in self._seen.spots:
            self._seen.spots[calls] = self._looked(calls)
        self._blind = self._seen.spots[calls]

    def _looked(self, calls: tuple[str, ...]) -> BlindSpots | None:
        """Each is only asked for what those before did not show."""
        from ..recorder.explanation import blind_spots

        found: BlindSpots | None = None
        for id in calls:
            before = None if found is None else found.unseen
            if before is not None and not before:
                break
            spots = blind_spots(self._kept[id], self.deadline, before)
            if found is None:
                found = spots
            elif spots is not None:
                found.unseen = spots.unseen
        return found


def _has_numbers(outputs: Outputs) -> bool:
    """Whether an output has any: what is NaN everywhere looks like every bug that overflows."""
    from ..recorder.tensors_of_outputs import as_tensor

    return any(bool(as_tensor(it).isfinite().any()) for it in outputs.values())
