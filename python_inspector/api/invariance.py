"""invariant(), and relations= of check(): a kernel compared with itself on other rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import versions
from .concluding import combined
from .inputs import Case, cases_of
from .relations import LIMITS, RELATIONS, Asked, Batch, Names, asked_relations
from .verdict import Verdict, WrongError, announce, by_its_verdict

if TYPE_CHECKING:
    from ..recorder.callables import Torch
    from .calling import Kernel
    from .trial import Tried


BLOCK = "relations"
"""Of verdicts that rest on relations alone."""


def invariant(
    function: Callable[..., Any],
    inputs: Any,
    vary: Names = RELATIONS,
    *,
    batch: Batch = None,
    weights: Mapping[str, Any] | None = None,
    arrays: str | Callable[[Any], Any] = "torch",
) -> Verdict:
    """Holds `function` to itself: a row has the same bits whatever is computed next to it.

        plumbline.invariant(my_norm, inputs=(x, weight))

    Nothing else is its reference. It is called again on the same rows arranged otherwise: some of
    them alone ("batch"), in another order ("position"), next to rows of NaN, infinity, huge values
    and other rows ("neighbours"), with rows added ("padding"), in parts ("chunks"), as they are
    ("repeat"), and on another stream of a GPU ("stream"). "graph", which is asked for by name,
    captures it in a CUDA graph and replays that on the operands. All outputs are compared, and
    arguments that it writes.

    Rows are those of the leading axis that tensors share with the first floating one. `batch` is
    another axis, or a dict by operand; those that it leaves out are given to every call as they
    are, like `weights`, which are keyword arguments. What cannot be tried is named; if that is all,
    the verdict is blind. `inputs` and `arrays` are those of check(). Raises WrongError, whose text
    is the verdict, and UsageError where it is not clear which operands have rows.
    """
    __tracebackhide__ = by_its_verdict  # pytest shows the test's own line
    versions.require("invariant()", "torch")
    from .calling import Kernel

    asked = asked_relations(vary, batch)
    if LIMITS in asked.demands.values():
        raise ValueError(f"{LIMITS} come of a reference: check(..., like=, relations=) has one")
    kernel = Kernel(function, arrays, 1)
    verdict = combined([_of_case(kernel, it, asked) for it in cases_of(inputs, weights=weights)])
    announce(verdict)
    if not verdict.passed:
        raise WrongError(verdict)
    return verdict


def _of_case(kernel: Kernel, case: Case, asked: Asked) -> Verdict:
    from ..recorder.callables import name_of
    from .trial import Trial

    name = name_of(kernel.function)
    observed = kernel.observed(case)
    if not observed.outputs:
        raise ValueError(f"{name} returns no tensor and writes to no argument")
    trial = Trial(kernel, observed, case, kernel.run(observed, case), asked)
    again = trial.again()  # where equal calls differ, that says all
    found = [again] if again.fault else trial.outcome()
    id = f"{name}:{case.name}" if case.name else name
    return related(Verdict(id, BLOCK, "pass", "", {}), found)


def planned_calls(like: Torch, case: Case, asked: Asked) -> list[Case]:
    """All further calls of a case, for a kernel in another process."""
    import torch

    from ..taps.calls import bound_arguments
    from .rows import rows_of, varied

    if not asked.demands:
        return []
    call = like.forward if isinstance(like, torch.nn.Module) else like
    bound = bound_arguments(call, *case.arguments)
    rows = rows_of(bound, asked.batch)
    return [
        replace(case, arguments=varied(case.arguments, bound, rows, it)[0])
        for it in rows.planned(asked, on_device=())
    ]


def related(verdict: Verdict, found: Sequence[Tried]) -> Verdict:
    """The verdict on one case, and what relations add to it."""
    tried = [it for it in found if not it.why_not]
    wrong = [it for it in tried if it.fault]
    status, reasons = verdict.status, [verdict.reason]
    if wrong:
        unstable = wrong[0].relation == "repeat" and wrong[0].differing
        status = "nondeterministic" if unstable else "fail"
        reasons = [f"{it.relation}: {_words(it)}" for it in wrong]
        if wrong[0].rows:
            reasons.append(f"rows are those of {wrong[0].rows}")
    elif tried:
        reasons.append(_passing(tried))
    elif verdict.block == BLOCK:
        status, reasons = "blind", ["no relation could be tried"]
    without = set().union(*(it.not_by_row for it in tried))
    return replace(
        verdict,
        status=status,
        reason="; ".join(filter(None, reasons)),
        figures={**verdict.figures, "outputs": _with_gates(verdict, tried)},
        not_judged=(
            *verdict.not_judged,
            *(f"{it.relation}: {it.why_not}" for it in found if it.why_not),
            *(f"{name}: it has no rows" for name in sorted(without)),
        ),
    )


def _words(tried: Tried) -> str:
    if not tried.differing:
        return tried.fault
    return f"{tried.fault} ({tried.differing} of {tried.calls} calls differ)"


def _passing(tried: Sequence[Tried]) -> str:
    """How many calls had the same bits."""
    same = ", ".join(f"{it.relation} {it.calls}" for it in tried if not it.differing)
    other = ", ".join(f"{it.relation} {it.differing} of {it.calls}" for it in tried if it.differing)
    rows = f" of rows of {tried[0].rows}" if tried[0].rows else ""
    words = [f"further calls{rows} have the same bits: {same}"] if same else []
    return "; ".join([*words, f"other bits, within limits: {other}"] if other else words)


def _with_gates(verdict: Verdict, tried: Sequence[Tried]) -> list[dict[str, Any]]:
    """Outputs as the judge has them; a relation is one more gate of the output where it shows."""
    empty = {
        "name": "out", "gates": [], "rounding": "", "golden_suspect": "", "ill_conditioned": "",
        "mismatch": "",
    }  # fmt: skip
    outputs = {it["name"]: dict(it) for it in verdict.figures.get("outputs", ())}
    for it in tried:
        name = it.output or next(iter(outputs), "out")
        output = outputs.setdefault(name, {**empty, "name": name})
        output["gates"] = [*output["gates"], _gate(it)]
    return list(outputs.values())


def _gate(tried: Tried) -> dict[str, Any]:
    wrong = bool(tried.fault)
    return {
        "name": tried.relation,
        "statistic": float(max(tried.elements, 1) if wrong else 0),
        "limit": 0.0,
        "passed": not wrong,
        "where": (wrong and tried.where) or f"{tried.calls} calls",
    }
