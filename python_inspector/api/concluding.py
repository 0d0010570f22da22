"""From what the judge says of calls to the verdict on a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .verdict import Verdict

if TYPE_CHECKING:
    from .calling import Calls


def concluded(id: str, calls: Calls, judged: Verdict | None, again: Verdict | None) -> Verdict:
    """What the judge says of a case's outputs, and what else there is to say of its calls."""
    verdict = judged or Verdict(
        id, "module", "pass", "all outputs are empty, as they should be", {}
    )
    wrong = verdict.status not in ("pass", "blind", "unsupported")
    faults = list(calls.faults)
    if again is not None and not wrong and again.status == "fail":
        faults.append(f"in a later call: {again.reason}")
    not_judged = (*verdict.not_judged, *calls.first.not_judged)
    verdict = replace(verdict, not_judged=not_judged)
    alone = next(iter(calls.first.outputs), "")
    if wrong and len(calls.first.outputs) == 1 and alone.endswith("_after"):
        verdict = replace(verdict, reason=f"{alone}: {verdict.reason}")
    if calls.first.faults or (faults and not calls.unstable):
        told = [*faults, verdict.reason] if wrong else faults
        return replace(verdict, status="fail", reason="; ".join(told))
    if calls.unstable and not wrong:
        return replace(
            verdict, status="nondeterministic", reason="; ".join([calls.unstable, *faults])
        )
    return verdict


def unseen_words(operations: Iterable[str]) -> list[str]:
    """Of a failure, what to do about operations that were taken as given."""
    named = " and ".join(sorted(name for name in operations if _of_a_library(name)))
    if not named:
        return []
    return [
        f"what {named} computes is not seen, so the limits leave no room for a kernel that rounds "
        "otherwise inside of it; say what it computes: plumbline.register_decomposition"
    ]


def _of_a_library(operation: str) -> bool:
    space, _, name = operation.partition("::")
    return bool(name) and space not in ("aten", "prims", "prim")


def combined(verdicts: list[Verdict], not_survived: Sequence[str] = ()) -> Verdict:
    """One verdict on all cases: the first that is wrong, or a pass if any case proves something.
    `not_survived` are kinds of operands that `like` gives no numbers for."""
    if len(verdicts) == 1 and not not_survived:
        return verdicts[0]
    wrong = [v for v in verdicts if v.status not in ("pass", "blind")]
    passed = sum(v.passed for v in verdicts)
    name = verdicts[0].checkpoint.partition(":")[0]
    worst = wrong[0] if wrong else next((v for v in verdicts if v.passed), verdicts[0])
    reason = f"{passed} of {len(verdicts)} cases pass"
    if not_survived:
        reason += f" (the reference says nothing of: {', '.join(not_survived)})"
    if not worst.passed:
        reason += "\n" + "\n".join(f"  {v}" for v in wrong or verdicts[:1])
    return replace(worst, checkpoint=name, reason=reason, diagnosis="", cases=tuple(verdicts))
