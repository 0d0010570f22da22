"""prepare(): what a reference and its inputs give is kept, and kernels are judged by it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import versions
from ..effort import DEFAULT_RUNS
from ..errors import UsageError
from ..native import judge_library, judged_by
from ..trace.room import bounded
from .backward import differentiated, kernel_of
from .case_files import CaseFiles, by_key
from .concluding import combined, concluded, unseen_words
from .explaining import Explainer, Seen
from .hard import Hard, hard_cases, kinds_of
from .how import How, how_of
from .inputs import Case, cases_of
from .invariance import related
from .keeping import LATER, OUTPUTS
from .large_calls import Judge, LargeCall
from .looser import FEW, with_contract
from .relations import Batch, Names, asked_relations
from .sealed import Replayed
from .verdict import Verdict, WrongError, announce, by_its_verdict

if TYPE_CHECKING:
    from ..format.contract_words import Asked as Contract
    from ..format.operands import Output
    from ..recorder.axes import Axes
    from ..recorder.callables import Torch
    from ..recorder.one_call import Kept, OneCallRecording
    from .calling import Calls, Kernel

_turns = threading.RLock()
"""Reruns change what all of torch does (its default dtype): a process has one at a time."""


@dataclass(frozen=True)
class Recorded:
    """A case that was recorded; `at` is its place among all that a sealed function is called on."""

    at: int
    case: Case
    kept: Kept
    large: LargeCall | None

    @property
    def id(self) -> str:
        return self.kept.checkpoint.id


class Prepared:
    """Judges kernels by one reference on the same inputs: what prepare() returns.

    Threads may share it: they take turns.
    """

    def __init__(
        self,
        like: Torch,
        cases: Sequence[Case],
        how: How,
        *,
        hard: Hard | None = None,
        whole: bool = False,
        too_large: str = "",
    ) -> None:
        """`hard` are cases that count where `like` survives them. `whole`: all rows are judged
        alike, however many there are. `too_large`: why there is nothing to judge by."""
        self.like, self.how = like, how
        self.cases: list[Recorded] = []
        self._asked = len(cases)
        self._sealed_calls = len(cases) + sum(map(len, (hard or {}).values()))
        self._not_survived: list[str] = []
        self._room: int | None = None
        self._bad_oracle = "" if whole else None
        """Of gradients why they are not believed; None until that is asked. Parts of a case are not
        asked."""
        self._too_large = too_large
        with _turns, judged_by(how.harness):
            judge_library()  # without one nothing needs to be recorded
            self._recording = _recording(like, how, cases[0].weights if cases else {})
            whole = whole or how.valid is not None or how.gradients is not None
            self._add(cases, hard or {}, whole)
        self._versions = self._recording.versions()
        self._files = CaseFiles(self._recording, how.contract.rounding)
        self._seen = Seen()

    def _add(self, cases: Sequence[Case], hard: Hard, whole: bool) -> None:
        import torch

        try:
            self.cases += [self._recorded(at, case, whole) for at, case in enumerate(cases)]
            at = len(cases)
            for kind, variants in hard.items():
                survived = self._survived(at, variants, whole)
                if survived is None:
                    self._not_survived.append(kind)
                else:
                    self.cases.append(survived)
                at += len(variants)
        except torch.cuda.OutOfMemoryError as error:
            self._too_large = _too_large(str(error))

    def _recorded(self, at: int, case: Case, whole: bool) -> Recorded:
        from ..recorder import large

        recording = self._recording.using(case.weights)
        kept, rows, room = large.add(recording, case.arguments, case.name, whole=whole)
        if self.how.gradients is not None:
            from ..recorder.closed_rows import TURNS, without_open_rows, words_on_closed

            for _ in range(TURNS if self.how.closes else 0):
                other = without_open_rows(case.arguments, kept.reruns.undecided)
                if other is None:
                    break
                recording.drop(kept)
                case = replace(case, arguments=other)
                kept, rows, room = large.add(recording, other, case.name, whole=whole)
            kept.doubts = (*words_on_closed(case.arguments), *kept.doubts)
        self._room = max(filter(None, (self._room, room)), default=None)
        return Recorded(at, case, kept, None if rows is None else LargeCall(rows, case.arguments))

    def _survived(self, first: int, variants: Sequence[Case], whole: bool) -> Recorded | None:
        """The first hard case that `like` survives: it gives numbers, within its own limits."""
        import torch

        from ..recorder.measured import is_judged

        for at, case in enumerate(variants, first):
            try:
                made = self._recorded(at, case, whole)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:  # of `like`, which says nothing of such operands
                continue
            if is_judged(made.kept) and (made.large is None or made.large.rows.finite):
                return made
            self._recording.drop(made.kept)
        return None

    def __call__(self, function: Callable[..., Any]) -> Verdict:
        """As check(): the verdict, or an AssertionError whose text it is."""
        __tracebackhide__ = by_its_verdict  # pytest shows the test's own line
        from .calling import Kernel

        how = self.how
        kernel = Kernel(kernel_of(function, how), how.arrays, how.repeat, how.mutates)
        verdict = self.judged(kernel)
        announce(verdict)
        if not verdict.passed:
            raise WrongError(verdict)
        return verdict

    def judged(self, kernel: Kernel, keep: Path | None = None) -> Verdict:
        """What the judge says of a kernel on all cases, which stay in the folder `keep`."""
        import torch

        from ..recorder.kernel_gradients import KernelBackwardError

        with _turns, judged_by(self.how.harness):
            if self._too_large:
                return self._blind(self._too_large)
            if bad := self._why_gradients_are_bad():
                return Verdict(self._recording.name, "module", "unsupported", bad, {})
            if self._versions != self._recording.versions():
                name = self._recording.name
                raise UsageError(f"[prepare] {name} has other weights now: prepare it again")
            try:
                with bounded(self._room):
                    calls = [_called(kernel, it) for it in self.cases]
                    verdict = self._concluded(calls, keep, kernel)
            except torch.cuda.OutOfMemoryError as error:
                verdict = self._blind(_too_large(str(error)))
            except KernelBackwardError as error:
                verdict = Verdict(self._recording.name, "module", "error", str(error), {})
            self._versions = self._recording.versions()
            return self._with_what_is_left_out(verdict)

    def _why_gradients_are_bad(self) -> str:
        """Of the reference, in the first case where they are."""
        gradients = self.how.gradients
        if self._bad_oracle is None and gradients is not None:
            from ..recorder.central_differences import bad_oracle

            self._bad_oracle = ""
            for it in self.cases:
                bad, doubts = bad_oracle(gradients, it.case.arguments, it.kept.reruns)
                it.kept.doubts += doubts
                self._bad_oracle = self._bad_oracle or bad
        return self._bad_oracle or ""

    def _with_what_is_left_out(self, verdict: Verdict) -> Verdict:
        """What is taken from the reference as it is, and what of the gradients is not judged, or
        not by the reference."""
        reruns = [it.kept.reruns for it in self.cases]
        opaque = {name for it in reruns if it.given is not None for name in it.given.opaque}
        taken = [f"what {name} computes" for name in sorted(opaque)]
        unseen = unseen_words(opaque) if verdict.status == "fail" else []
        own = [text for it in self.cases for text in it.kept.doubts]
        doubts = tuple(dict.fromkeys([*verdict.doubts, *unseen, *own]))
        left_out = self.how.gradients.left_out if self.how.gradients is not None else ()
        not_judged = (*verdict.not_judged, *taken, *left_out)
        if (not_judged, doubts) == (verdict.not_judged, verdict.doubts):
            return verdict
        return replace(verdict, not_judged=not_judged, doubts=doubts)

    def _concluded(
        self,
        whole: Sequence[Calls],
        keep: Path | None,
        kernel: Kernel | None = None,
        *,
        explain: bool = True,
    ) -> Verdict:
        """The verdict on calls of a kernel, on each case what it did; relations are tried of
        `kernel`."""
        how = self.how
        calls = [
            made if of.large is None else of.large.chosen(made)
            for made, of in zip(whole, self.cases, strict=True)
        ]
        troubled = any(it.faults or it.unstable for it in calls)  # no bug of `like`
        measures = how.contract.rounding is None and keep is None
        explainer = self._explainer(not troubled and how.explain, how.bugs, measures)
        first = explainer.judged([it.first.outputs for it in calls], looks=explain)
        later = self._explainer(False, False, measures).judged(
            [it.again.outputs if it.again else {} for it in calls], LATER
        )
        verdicts = [
            replace(concluded(of.id, it, first.get(of.id), later.get(of.id)), drawn=of.case.drawn)
            for of, it in zip(self.cases, calls, strict=True)
        ]
        if explain and not troubled and how.explain and not how.contract.inside:
            verdicts = [
                with_contract(
                    it, made.dtypes, partial(self._judged_by, of, made), explainer.deadline
                )
                for of, it, made in zip(self.cases, verdicts, calls, strict=True)
            ]
        verdicts = [
            it if of.large else self._by_its_codes(of, it, made, keep)
            for of, it, made in zip(self.cases, verdicts, calls, strict=True)
        ]
        verdicts = [
            it if of.large is None else of.large.judged(made, it, self._judge_of_rows(of, keep))
            for of, it, made in zip(self.cases, verdicts, whole, strict=True)
        ]
        if kernel is not None and how.relations.demands:
            verdicts = self._related(verdicts, kernel, whole)
        verdict = combined(verdicts, self._not_survived)
        if verdict.passed or verdict.status == "blind":
            verdict = explainer.blinded(verdict)
        return verdict if keep is None or verdict.replay else self._stays(verdict, calls, keep)

    def _by_its_codes(
        self, of: Recorded, verdict: Verdict, calls: Calls, keep: Path | None
    ) -> Verdict:
        """A pass where simulated kernels round to different codes, held to those of the kernel. One
        that fails so is kept with them."""
        if verdict.status != "pass" or self.how.codes is not None or self.how.gradients:
            return verdict
        from ..recorder.own_codes import OF_BITS, WORDS, codes_that_fit

        failed = None
        for codes in codes_that_fit(of.kept, calls.first.outputs):
            how = replace(self.how, codes=codes, bugs=False, explain=False)
            part = Prepared(self.like, [of.case], how, whole=True)
            if part._too_large:
                return verdict
            found = part._concluded([calls], None, explain=False)
            if found.status != "fail" or set(found.failed_gates) <= OF_BITS:
                return verdict
            failed = failed or (part, replace(found, reason=f"{found.reason}; {WORDS}"))
        if failed is None:
            return verdict
        part, found = failed
        return found if keep is None else part._stays(found, [calls], keep)

    def _judge_of_rows(self, of: Recorded, keep: Path | None) -> Judge:
        large = of.large
        assert large is not None

        def judge(at: Sequence[int], calls: Calls) -> Verdict:
            how = replace(self.how, bugs=False)
            part = Prepared(self.like, [large.case_of(of.case, at)], how, whole=True)
            if part._too_large:
                return part._blind(part._too_large)
            verdict = part._concluded([calls], None, explain=False)
            fails = verdict.status not in ("pass", "blind")
            return part._stays(verdict, [calls], keep) if fails and keep else verdict

        return judge

    def _judged_by(self, of: Recorded, calls: Calls, contract: Contract, *, few: bool) -> Verdict:
        """The verdict on the calls of a case, of large ones on chosen rows, by another contract."""
        import torch

        case = of.case if of.large is None else of.large.case_of(of.case, of.large.rows.at)
        how = replace(self.how, contract=contract, bugs=False, explain=False)
        if few:
            how = replace(how, spread=min(how.spread, FEW))
        part = Prepared(self.like, [case], how, whole=True)
        if part._too_large:
            return part._blind(part._too_large)
        try:
            return part._concluded([calls], None, explain=False)
        except torch.cuda.OutOfMemoryError as error:  # a failure stays one
            return part._blind(_too_large(str(error)))

    def _blind(self, reason: str) -> Verdict:
        return Verdict(self._recording.name, "module", "blind", reason, {})

    def _related(
        self, verdicts: Sequence[Verdict], kernel: Kernel, calls: Sequence[Calls]
    ) -> list[Verdict]:
        """What relations add to verdicts on cases; nothing to one that fails, or is hard."""
        from .trial import Trial

        found, first = [], self._sealed_calls
        for i, verdict in enumerate(verdicts[: self._asked]):
            of = self.cases[i]
            trial = Trial(kernel, of.kept.observed, of.case, calls[i].first, self.how.relations)
            if verdict.status in ("pass", "blind"):
                verdict = related(verdict, trial.outcome(partial(self._within, i), first))
            else:
                names = self.how.relations.demands
                why = tuple(f"{name}: the first call does not pass" for name in names)
                verdict = replace(verdict, not_judged=(*verdict.not_judged, *why))
            first += len(trial.planned)
            found.append(verdict)
        return [*found, *verdicts[self._asked :]]

    def _within(self, case: int, outputs: Mapping[str, Output]) -> Verdict:
        """The judge on other outputs of a case."""
        from .calling import Calls, Run

        whole = Calls(Run(dict(outputs)))
        of = self.cases[case]
        calls = whole if of.large is None else of.large.chosen(whole)
        given = [calls.first.outputs if it is of else {} for it in self.cases]
        measures = self.how.contract.rounding is None
        verdict = self._explainer(False, False, measures).judged(given, LATER)[of.id]
        if of.large is None:
            return verdict
        return of.large.judged(whole, verdict, self._judge_of_rows(of, None))

    def _explainer(self, explain: bool | float, every: bool, measures: bool) -> Explainer:
        return Explainer(
            [it.kept for it in self.cases], self._files, self._seen, explain,
            every=every, measures=measures,
        )  # fmt: skip

    def _stays(self, verdict: Verdict, calls: Sequence[Calls], keep: Path) -> Verdict:
        """The verdict with the command that judges the case again, whose files are there."""
        from .calling import Run

        ids = [it.id for it in self.cases]
        runs = {
            OUTPUTS: [it.first for it in calls],
            LATER: [it.again or Run() for it in calls],
        }
        outputs = {
            name: by_key({id: it.outputs for id, it in zip(ids, of, strict=True)})
            for name, of in runs.items()
        }
        replay = self._files.keep(keep, outputs)
        if not replay:
            return verdict
        return replace(verdict, replay=replay)


def _called(kernel: Kernel, of: Recorded) -> Calls:
    """What the kernel does on a case. It is called until its bits differ: the next one has calls of
    its own."""
    if isinstance(kernel.function, Replayed):
        kernel = replace(kernel, function=kernel.function.of(of.at, of.at + 1))
    try:
        return kernel.call(of.kept.observed, of.case)
    except Exception as error:
        if of.case.name is not None:
            error.add_note(f"on these operands: {of.id}")
        raise


def prepare(
    like: Torch,
    inputs: Any,
    *,
    weights: Mapping[str, Any] | None = None,
    arrays: str | Callable[[Any], Any] = "torch",
    contract: str | None = None,
    bugs: bool = False,
    explain: bool | float = True,
    spread: int = DEFAULT_RUNS,
    repeat: int = 2,
    axes: Axes = None,
    valid: Any = None,
    hard: bool | Sequence[str] = False,
    relations: Names = (),
    batch: Batch = None,
    mutates: Collection[str] | None = None,
    harness: Path | str | None = None,
    backward: bool = False,
) -> Prepared:
    """Runs `like` on the inputs once for many kernels, which the result judges as check() does.

        judge = plumbline.prepare(torch.nn.RMSNorm(64), inputs=(x,))
        judge(my_norm)

    The arguments are those of check(). Inputs and weights are copied; `like`, and what else it
    uses, must stay as they are. Drawn inputs are drawn once.
    """
    versions.require("prepare()", "torch")
    import torch

    from ..recorder.arguments import Given

    given, kinds = Given(None, grad=True), kinds_of(hard)
    how = how_of(
        arrays, contract, bugs, explain, spread, repeat, axes, valid, mutates, harness,
        asked_relations(relations, batch),
    )  # fmt: skip
    try:
        cases = [it.mapped(given.of, it.name, it.drawn) for it in cases_of(inputs, weights=weights)]
        if backward:
            like, cases, how = differentiated(like, cases, how)
        return Prepared(like, cases, how, hard=hard_cases(cases[0], kinds))
    except torch.cuda.OutOfMemoryError as error:
        return Prepared(like, [], how, too_large=_too_large(str(error)))


def _too_large(text: str) -> str:
    """What torch says of its memory, without its advice."""
    found = re.search(r"allocate (\S+ \w+)\. (GPU \d+) .*?(\S+ \w+) of which (\S+ \w+) is", text)
    if not found:
        return f"too large to be judged: {text.partition(chr(10))[0]}"
    needed, device, all_of_it, free = found.groups()
    return (
        f"too large to be judged: {needed} more are needed, {device} has {all_of_it} of which "
        f"{free} is free; judge fewer rows"
    )


def _recording(like: Torch, how: How, weights: Mapping[str, Any]) -> OneCallRecording:
    from ..recorder.left_out import Valid
    from ..recorder.one_call import OneCallRecording

    return OneCallRecording(
        like,
        weights=weights,
        spread=how.spread,
        axes=how.axes,
        valid=None if how.valid is None else Valid(how.valid),
        inside=how.contract.inside,
        gradients=frozenset() if how.gradients is None else how.gradients.names,
        codes=how.codes,
    )
