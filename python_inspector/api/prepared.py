"""prepare(): what a reference and its inputs give is kept, and kernels are judged by it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import needs
from ..effort import DEFAULT_RUNS
from ..errors import UsageError
from ..native import judge_library, judged_by
from ..trace.room import bounded
from .case_files import CaseFiles, by_key
from .concluding import combined, concluded
from .explaining import Explainer, Seen
from .inputs import Case, cases_of
from .invariance import related
from .keeping import LATER, OUTPUTS
from .large_calls import Judge, LargeCall
from .relations import Asked, Batch, Names, asked_relations
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
class How:
    """What check() and prepare() are asked for, beside the reference and its inputs."""

    weights: Mapping[str, Any]
    arrays: str | Callable[[Any], Any]
    contract: Contract
    bugs: bool
    explain: bool | float
    spread: int
    repeat: int
    axes: Axes
    valid: Any
    mutates: Collection[str] | None
    harness: Path | str | None
    relations: Asked


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
        whole: bool = False,
        too_large: str = "",
    ) -> None:
        """`whole`: all rows are judged alike, however many there are. `too_large`: why there is
        nothing to judge by."""
        self._like, self._how, self._cases = like, how, cases
        self._kept: list[Kept] = []
        self._large: list[LargeCall | None] = []
        self._room: int | None = None
        self._too_large = too_large
        with _turns, judged_by(how.harness):
            judge_library()  # without one nothing needs to be recorded
            self._recording = _recording(like, how)
            self._add(whole or how.valid is not None)
        self._versions = self._recording.versions()
        self._files = CaseFiles(self._recording, how.contract.rounding)
        self._seen = Seen()

    def _add(self, whole: bool) -> None:
        import torch

        from ..recorder import large

        try:
            for case, arguments in self._cases:
                kept, rows, room = large.add(self._recording, arguments, case, whole=whole)
                self._kept.append(kept)
                self._large.append(None if rows is None else LargeCall(rows, arguments))
                self._room = max(filter(None, (self._room, room)), default=None)
        except torch.cuda.OutOfMemoryError as error:
            self._too_large = _too_large(str(error))

    def __call__(self, function: Callable[..., Any]) -> Verdict:
        """As check(): the verdict, or an AssertionError whose text it is."""
        __tracebackhide__ = by_its_verdict  # pytest shows the test's own line
        from .calling import Kernel

        how = self._how
        verdict = self.judged(Kernel(function, how.weights, how.arrays, how.repeat, how.mutates))
        announce(verdict)
        if not verdict.passed:
            raise WrongError(verdict)
        return verdict

    def judged(self, kernel: Kernel, keep: Path | None = None) -> Verdict:
        """What the judge says of a kernel on all cases, which stay in the folder `keep`."""
        import torch

        with _turns, judged_by(self._how.harness):
            if self._too_large:
                return self._blind(self._too_large)
            if self._versions != self._recording.versions():
                name = self._recording.name
                raise UsageError(f"[prepare] {name} has other weights now: prepare it again")
            try:
                with bounded(self._room):
                    calls = [
                        _of_case(kernel, i).call(self._kept[i].observed, arguments)
                        for i, (_, arguments) in enumerate(self._cases)
                    ]
                    verdict = self._concluded(calls, keep, kernel)
            except torch.cuda.OutOfMemoryError as error:
                verdict = self._blind(_too_large(str(error)))
            self._versions = self._recording.versions()
            return verdict

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
        how = self._how
        calls = [
            made if large is None else large.chosen(made)
            for made, large in zip(whole, self._large, strict=True)
        ]
        troubled = any(it.faults or it.unstable for it in calls)  # no bug of `like`
        measures = how.contract.rounding is None and keep is None
        explainer = self._explainer(not troubled and how.explain, how.bugs, measures)
        first = explainer.judged([it.first.outputs for it in calls], looks=explain)
        later = self._explainer(False, False, measures).judged(
            [it.again.outputs if it.again else {} for it in calls], LATER
        )
        verdicts = [
            concluded(id, it, first.get(id), later.get(id))
            for id, it in zip((it.checkpoint.id for it in self._kept), calls, strict=True)
        ]
        verdicts = [
            it if large is None else large.judged(made, it, self._judge_of_rows(i, large, keep))
            for i, (it, made, large) in enumerate(zip(verdicts, whole, self._large, strict=True))
        ]
        if kernel is not None and how.relations.demands:
            verdicts = self._related(verdicts, kernel, whole)
        verdict = combined(verdicts)
        if verdict.passed or verdict.status == "blind":
            verdict = explainer.blinded(verdict)
        return verdict if keep is None or verdict.replay else self._stays(verdict, calls, keep)

    def _judge_of_rows(self, case: int, large: LargeCall, keep: Path | None) -> Judge:
        def judge(at: Sequence[int], calls: Calls) -> Verdict:
            arguments = large.rows.rows.of(large.arguments, at)
            how = replace(self._how, bugs=False)
            part = Prepared(self._like, [(self._cases[case][0], arguments)], how, whole=True)
            if part._too_large:
                return part._blind(part._too_large)
            verdict = part._concluded([calls], None, explain=False)
            fails = verdict.status not in ("pass", "blind")
            return part._stays(verdict, [calls], keep) if fails and keep else verdict

        return judge

    def _blind(self, reason: str) -> Verdict:
        return Verdict(self._recording.name, "module", "blind", reason, {})

    def _related(
        self, verdicts: Sequence[Verdict], kernel: Kernel, calls: Sequence[Calls]
    ) -> list[Verdict]:
        """What relations add to verdicts on cases; nothing to one that fails."""
        from .trial import Trial

        found, first = [], len(self._cases)
        for i, verdict in enumerate(verdicts):
            observed, (_, arguments) = self._kept[i].observed, self._cases[i]
            trial = Trial(kernel, observed, arguments, calls[i].first, self._how.relations)
            if verdict.status in ("pass", "blind"):
                verdict = related(verdict, trial.outcome(partial(self._within, i), first))
            else:
                names = self._how.relations.demands
                why = tuple(f"{name}: the first call does not pass" for name in names)
                verdict = replace(verdict, not_judged=(*verdict.not_judged, *why))
            first += len(trial.planned)
            found.append(verdict)
        return found

    def _within(self, case: int, outputs: Mapping[str, Output]) -> Verdict:
        """The judge on other outputs of a case."""
        from .calling import Calls, Run

        whole = Calls(Run(dict(outputs)))
        large = self._large[case]
        calls = whole if large is None else large.chosen(whole)
        given = [calls.first.outputs if i == case else {} for i in range(len(self._kept))]
        measures = self._how.contract.rounding is None
        judged = self._explainer(False, False, measures).judged(given, LATER)
        verdict = judged[self._kept[case].checkpoint.id]
        if large is None:
            return verdict
        return large.judged(whole, verdict, self._judge_of_rows(case, large, None))

    def _explainer(self, explain: bool | float, every: bool, measures: bool) -> Explainer:
        return Explainer(
            self._kept, self._files, self._seen, explain, every=every, measures=measures
        )

    def _stays(self, verdict: Verdict, calls: Sequence[Calls], keep: Path) -> Verdict:
        """The verdict with the command that judges the case again, whose files are there."""
        from .calling import Run

        ids = [it.checkpoint.id for it in self._kept]
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
        print(f"{verdict.checkpoint}: {verdict.status}; again: {replay}")
        return replace(verdict, replay=replay)


def _of_case(kernel: Kernel, case: int) -> Kernel:
    """A case is called until its bits differ: the next one has calls of its own."""
    if isinstance(kernel.function, Replayed):
        return replace(kernel, function=kernel.function.of(case, case + 1))
    return kernel


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
    relations: Names = (),
    batch: Batch = None,
    mutates: Collection[str] | None = None,
    harness: Path | str | None = None,
) -> Prepared:
    """Runs `like` on the inputs once for many kernels, which the result judges as check() does.

        judge = plumbline.prepare(torch.nn.RMSNorm(64), inputs=(x,))
        judge(my_norm)

    The arguments are those of check(). Inputs and weights are copied; `like`, and what it uses
    beside them, must stay as they are. Drawn inputs are drawn once.
    """
    needs.require("prepare()", "torch", "transformers")
    import torch

    from ..recorder.arguments import Given

    given = Given(None, grad=True)
    how = how_of(
        given.of(dict(weights or {})), arrays, contract, bugs, explain, spread, repeat, axes, valid,
        mutates, harness, asked_relations(relations, batch),
    )  # fmt: skip
    try:
        cases = [
            (case, (given.of(args), given.of(kwargs))) for case, (args, kwargs) in cases_of(inputs)
        ]
    except torch.cuda.OutOfMemoryError as error:
        return Prepared(like, [], how, too_large=_too_large(str(error)))
    return Prepared(like, cases, how)


def judged_once(
    kernel: Kernel, like: Torch, cases: Sequence[Case], how: How, keep: Path | None
) -> Verdict:
    """The verdict on one kernel; blind where the GPU has no memory to judge it."""
    return Prepared(like, cases, how).judged(kernel, keep)


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


def how_of(
    weights: Mapping[str, Any] | None,
    arrays: str | Callable[[Any], Any],
    contract: str | None,
    *rest: Any,
) -> How:
    """What is asked for; ValueError where that is none."""
    from ..format.contract_words import asked

    how = How(weights or {}, arrays, asked(contract), *rest)
    if how.repeat < 1:
        raise ValueError(f"repeat is {how.repeat}: the function is called once at least")
    return how


def _recording(like: Torch, how: How) -> OneCallRecording:
    from ..recorder.left_out import Valid
    from ..recorder.one_call import OneCallRecording

    return OneCallRecording(
        like,
        weights=how.weights,
        spread=how.spread,
        axes=how.axes,
        valid=None if how.valid is None else Valid(how.valid),
        inside=how.contract.inside,
    )
