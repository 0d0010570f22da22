"""What figures say of outputs, measured where the tensors are: no file is read.

A pass of large outputs of an accelerator is found so (a host's threads judge files as fast), where
nothing is special about them: no row is set aside, no choice is open, the reference is itself
within its limits. What is nearer to a limit than rounding the figures could move it is left to the
judge of files. That a call fails, of whatever size, is known so before it is judged, so that it is
judged once, beside what explains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..format.host_copy import is_host
from ..format.operands import Output
from ..format.recording import OutputRef
from ..trace.gates import Gates
from .explanation import judgement_without_members
from .one_call import Kept, undisturbed
from .tensors_of_outputs import as_tensor

LARGE = 1 << 20
"""Elements from which files cost more than figures."""
BELOW, ABOVE = 1 - 1e-9, 1 + 1e-9
"""Shares of a limit that are a pass, or a failure, whichever order figures are added in."""


def pass_of(kept: Kept, outputs: Mapping[str, Output]) -> dict[str, Any] | None:
    """A checkpoint's result, as the judge has it but for its statistics, which are shares of their
    limits; None where files have to decide."""
    refs = kept.checkpoint.outputs
    if outputs.keys() != refs.keys() or not refs or kept.reruns.words:
        return None
    if not all(map(_is_plain, refs.values())) or not is_large(kept):
        return None
    with undisturbed(kept.differentiates):
        judgement = judgement_without_members(kept)
        if judgement is None or judgement.gates.keys() != refs.keys():
            return None
        judged = []
        for name, gates in judgement.gates.items():
            y = _tensor(gates, outputs[name])
            found = None if y is None else _within(gates, y)
            if found is None:
                return None
            judged.append(_output(name, gates, *found))
    of = kept.checkpoint
    return {
        "status": "pass", "block": of.block, "checkpoint": of.id, "reason": "", "outputs": judged,
        "details": [f'output "{it["name"]}": {it["judged"]}' for it in judged],
    }  # fmt: skip


def fails(kept: Kept, outputs: Mapping[str, Output]) -> bool:
    """Whether an output is beyond its limits, by more than other sums would move it."""
    with undisturbed(kept.differentiates):
        judgement = judgement_without_members(kept)
        for name, gates in judgement.gates.items() if judgement else ():
            y = _tensor(gates, outputs[name]) if name in outputs else None
            if y is not None and gates.margin(y) > ABOVE:
                return True
    return False


def is_large(kept: Kept) -> bool:
    """Whether an accelerator has so many elements of outputs that files take long."""
    exact = kept.reruns.oracle or {}
    return sum(t.numel() for t, _ in exact.values() if not is_on_host(t)) >= LARGE


def is_on_host(t: torch.Tensor) -> bool:
    return is_host(t.device)


def _is_plain(ref: OutputRef) -> bool:
    special = (ref.valid, ref.sampled, ref.chained, ref.undecidable, ref.ill_conditioned, ref.legal)
    return all(it is None for it in special) and not ref.left_out and ref.simulated is not None


def _tensor(gates: Gates, output: Output) -> torch.Tensor | None:
    """An output where the reference is; None where it has another dtype or shape."""
    y = as_tensor(output)
    fits = (y.dtype, y.shape) == (gates.r.dtype, gates.r.shape)
    return y.to(gates.r.device) if fits else None


def _within(gates: Gates, y: torch.Tensor) -> tuple[dict[str, float], str] | None:
    """Shares of the limits, all of which are kept, and which rounding is followed; None where a
    limit is not kept, or may not be."""
    if not bool(gates.r.isfinite().all()) or not gates.scales.all_usable:
        return None
    if not bool(y.isfinite().all()) or not gates.margin_of_r <= BELOW:
        return None
    ratios, rounding = gates.measured(y)
    return (ratios, rounding) if ratios and max(ratios.values()) <= BELOW else None


def _output(name: str, gates: Gates, ratios: Mapping[str, float], rounding: str) -> dict[str, Any]:
    count = gates.r.numel()
    return {
        "name": name,
        "status": "pass",
        "reason": "",
        "judged": f"{count} of {count} elements judged where they are, gates as shares of limits",
        "gates": [
            {"name": gate, "statistic": ratio, "limit": 1.0, "derivation": {}, "passed": True,
             "where": ""}
            for gate, ratio in ratios.items()
        ],
        "rounding": rounding,
        "golden_suspect": "",
        "ill_conditioned": "",
        "mismatch": "",
    }  # fmt: skip
