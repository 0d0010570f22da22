"""What figures say of outputs, measured where the tensors are: no file is read.

Outputs are judged so where nothing is special about them: no row is set aside, no choice is open,
the reference is itself within its limits. Where its figures are asked for anyway, for planted bugs,
that is faster than files; else large ones of an accelerator are. What is nearer to a limit than
rounding the figures could move it is left to the judge of files. That a call fails is known so
before it is judged, so that it is judged once, with what explains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..format.host_copy import is_host
from ..format.operands import Output
from ..format.recording import OutputRef, as_number
from ..trace.failing import Bug, failure, figures
from ..trace.gates import Gates
from ..trace.judgement import Judgement
from .explanation import judgement_without_members
from .one_call import Kept, undisturbed
from .tensors_of_outputs import as_tensor

LARGE = 1 << 20
"""Elements on an accelerator from which files cost more than figures."""
BELOW, ABOVE = 1 - 1e-9, 1 + 1e-9
"""Shares of a limit that are a pass, or a failure, whichever order figures are added in."""


def pass_of(
    kept: Kept, outputs: Mapping[str, Output], *, wanted: bool = False
) -> dict[str, Any] | bool | None:
    """A checkpoint's result, as the judge has it; False where it fails, None where files have to
    decide. `wanted`: its figures are, of whatever size."""
    if not (wanted or is_large(kept)) or not _may_decide(kept, outputs):
        return None
    with undisturbed(kept.differentiates):
        judgement = judgement_without_members(kept)
        if judgement is None or judgement.gates.keys() != outputs.keys():
            return None
        told = []
        for name, gates in sorted(judgement.gates.items()):  # as in files
            y = _tensor(gates, outputs[name])
            if y is None or not bool(y.isfinite().all()):
                return None
            found = figures(gates, y, name, kept.checkpoint.outputs[name].labels)
            if _is_beyond(found["verdict"]["gates"]):
                return False
            if not _is_within(found["verdict"]["gates"]) or not _is_believed(gates):
                return None
            told.append(found)
    return _result(kept, told)


def failure_of(
    kept: Kept,
    outputs: Mapping[str, Output],
    explained: Judgement | None,
    *,
    wanted: bool = False,
) -> dict[str, Any] | None:
    """A checkpoint's result whose outputs fail, or follow another rounding that it is `explained`
    by, in the judge's words; None where files have to decide."""
    if not (wanted or is_large(kept)) or not _may_decide(kept, outputs):
        return None
    with undisturbed(kept.differentiates):
        judgement = explained or judgement_without_members(kept)
        if judgement is None or judgement.gates.keys() != outputs.keys():
            return None
        told = []
        for name, gates in sorted(judgement.gates.items()):  # as in files
            y = _tensor(gates, outputs[name])
            if y is None or not _is_believed(gates):
                return None
            labels = kept.checkpoint.outputs[name].labels
            told.append(failure(gates, y, name, labels, _bugs(judgement, name)))
    return _result(kept, told)


def _result(kept: Kept, told: list[dict[str, Any]]) -> dict[str, Any]:
    """Of a checkpoint with outputs that the judge said these of."""
    outputs = [it["verdict"] for it in told]
    refs = kept.reruns.oracle or {}
    counts = [refs[it["name"]][0].numel() for it in outputs]
    several = len(outputs) > 1
    of = kept.checkpoint
    failed = [it for it in outputs if it["status"] == "fail"]
    first = failed[0] if failed else outputs[0]
    reason = f"{first['name']}: {first['reason']}" if several and failed else first["reason"]
    bugs = [it for it in told if it["known_bug"]]
    bits = [
        f"{it['verdict']['name']}: {it['bits']}" if several else it["bits"]
        for it in told
        if it["bits"]
    ]
    return {
        "status": "fail" if failed else "pass", "block": of.block, "checkpoint": of.id,
        "reason": "; ".join([reason, bugs[0]["bug_words"]] if bugs else [reason]),
        "outputs": outputs, "diagnosis": "; ".join(bits),
        "known_bug": bugs[0]["known_bug"] if bugs else None,
        "details": [
            f'output "{it["name"]}": {count} of {count} elements judged where they are'
            for it, count in zip(outputs, counts, strict=True)
        ],
    }  # fmt: skip


def _bugs(judgement: Judgement, name: str) -> list[Bug]:
    """Those that an output is to be compared with."""
    planted = sorted(judgement.bugs.planted, key=lambda it: it.margin)
    return [(it.bug.told, it.shown[0]) for it in planted if it.shown[0].output == name]


def _may_decide(kept: Kept, outputs: Mapping[str, Output]) -> bool:
    """Whether nothing is special about outputs, all of which are here."""
    refs = kept.checkpoint.outputs
    whole = outputs.keys() == refs.keys() and bool(refs) and not kept.reruns.words
    return whole and all(map(_is_plain, refs.values()))


def fails(kept: Kept, outputs: Mapping[str, Output]) -> bool:
    """Whether an output is beyond its limits, by more than other sums would move it."""
    with undisturbed(kept.differentiates):
        judgement = judgement_without_members(kept)
        for name, gates in judgement.gates.items() if judgement else ():
            y = _tensor(gates, outputs[name]) if name in outputs else None
            if y is not None and gates.margin(y) > ABOVE:
                return True
    return False


def is_judged(kept: Kept) -> bool:
    """Whether all results are numbers, the reference's within its own limits: others may be held to
    those."""
    exact = [t for t, _ in (kept.reruns.oracle or {}).values()]
    if not exact or not all(bool(t.isfinite().all()) for t in exact):
        return False
    with undisturbed(kept.differentiates):
        judgement = judgement_without_members(kept)
        gates = [] if judgement is None else judgement.gates.values()
        return all(bool(g.r.isfinite().all()) and g.margin_of_r <= BELOW for g in gates)


def is_large(kept: Kept) -> bool:
    """Whether outputs on an accelerator have so many elements that files take long."""
    exact = kept.reruns.oracle or {}
    return sum(t.numel() for t, _ in exact.values() if not is_on_host(t)) >= LARGE


def is_on_host(t: torch.Tensor) -> bool:
    return is_host(t.device)


def _is_plain(ref: OutputRef) -> bool:
    special = (ref.valid, ref.sampled, ref.chained, ref.undecidable, ref.ill_conditioned, ref.legal)
    stable = not ref.left_out and not ref.unstable
    return all(it is None for it in special) and stable and ref.simulated is not None


def _tensor(gates: Gates, output: Output) -> torch.Tensor | None:
    """An output where the reference is; None where it has another dtype or shape."""
    y = as_tensor(output)
    fits = (y.dtype, y.shape) == (gates.r.dtype, gates.r.shape)
    return y.to(gates.r.device) if fits else None


def _is_believed(gates: Gates) -> bool:
    """Whether the reference is all numbers, within its own limits, and nothing is to be said of
    their values: they are not all alike, none is denormal."""
    return gates.scales.is_usual and gates.is_all_numbers and gates.margin_of_r <= BELOW


def _is_within(gates: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all limits are kept, by more than other sums would move an output."""
    return bool(gates) and all(
        as_number(gate["statistic"]) <= BELOW * as_number(gate["limit"]) for gate in gates
    )


def _is_beyond(gates: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one is not, by as much."""
    return any(as_number(gate["statistic"]) > ABOVE * as_number(gate["limit"]) for gate in gates)
