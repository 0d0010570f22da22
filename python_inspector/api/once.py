"""One kernel judged once, and what stays of it on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .hard import Hard
from .how import How
from .inputs import Case
from .keeping import SMALLEST
from .prepared import Prepared, Recorded
from .shrinking import smallest, tensors_of
from .verdict import Verdict

if TYPE_CHECKING:
    from ..recorder.callables import Torch
    from .calling import Kernel

SECONDS = 10.0
"""To find a smaller case that fails, by default."""


@dataclass(frozen=True)
class Keep:
    """The folder of a case, and for how many seconds smaller ones are given to the kernel."""

    folder: Path
    seconds: float


def judged_once(
    kernel: Kernel,
    like: Torch,
    cases: Sequence[Case],
    hard: Hard,
    how: How,
    keep: Keep | None,
) -> Verdict:
    """The verdict on one kernel."""
    prepared = Prepared(like, cases, how, hard=hard)
    verdict = prepared.judged(kernel, keep.folder if keep else None)
    return verdict if keep is None else _with_smallest(prepared, kernel, verdict, keep)


def _with_smallest(prepared: Prepared, kernel: Kernel, verdict: Verdict, keep: Keep) -> Verdict:
    """The verdict, and where the smallest case is that fails by the same gate; the folder has it.
    Failures without a gate stay as they are. Of large outputs the chosen rows are cut."""
    from .standalone import SCRIPT, write

    gate = _failed_gate(verdict)
    if gate is None or keep.seconds <= 0:
        return verdict
    cases = verdict.cases or (verdict,)
    of = next(
        it for it, said in zip(prepared.cases, cases, strict=True) if gate in said.failed_gates
    )
    failed = of.case if of.large is None else of.large.case_of(of.case, of.large.rows.at)
    found: list[tuple[Recorded, Verdict]] = []
    again = kernel.again()

    def fails(case: Case) -> bool:
        alone = _judged_alone(prepared, case, again)
        if alone is None or gate not in alone[1].failed_gates:
            return False
        found.append(alone)
        return True

    if not fails(failed):
        return verdict
    case = smallest(failed, fails, keep.seconds)
    place = keep.folder / SMALLEST
    try:
        write(place, found[-1][0], again, found[-1][1])
    except RuntimeError:  # a GPU has no context after what a smaller case did to it
        return verdict
    shapes = ", ".join(str(list(t.shape)) for t in tensors_of(case))
    return replace(verdict, smallest=f"{shapes}; python {place / SCRIPT}")


def _judged_alone(prepared: Prepared, case: Case, again: Kernel) -> tuple[Recorded, Verdict] | None:
    """What is said of the kernel on one case; None where the reference is not right there."""
    from ..recorder.measured import is_judged

    try:
        how = replace(prepared.how, explain=False, bugs=False)
        alone = Prepared(prepared.like, [case], how, whole=True)
        judged = alone.judged(again) if is_judged(alone.cases[0].kept) else None
    except Exception:  # of code that says nothing of such operands
        return None
    return None if judged is None else (alone.cases[0], judged)


def _failed_gate(verdict: Verdict) -> str | None:
    """The gate that a smaller case has to fail by, too: one that a case of any size has, if it
    can."""
    gates = verdict.failed_gates
    return next((it for it in ("classes", "element") if it in gates), next(iter(gates), None))
