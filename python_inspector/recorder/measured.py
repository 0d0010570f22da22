"""A pass that is found on the accelerator where the tensors are: the judge is given figures, no
file is read.

Only of large outputs (a host's threads judge files as fast), and only where nothing is special
about them: no row is set aside, no choice is open, the reference is itself within its limits. What
is nearer to a limit than rounding the figures could move it is left to the judge of files, as is
everything that is wrong, which needs words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..format.host_copy import is_host
from ..format.operands import Output
from ..format.recording import TORCH_DTYPES, OutputRef
from ..trace.gates import Gates
from .explanation import judgement_without_members
from .one_call import Kept, undisturbed

LARGE = 1 << 20
"""Elements from which files cost more than figures."""
BELOW = 1 - 1e-9
"""A share of a limit that is a pass whichever order figures are added in."""


def pass_of(kept: Kept, outputs: Mapping[str, Output]) -> dict[str, Any] | None:
    """A checkpoint's result, as the judge has it but for its statistics, which are shares of their
    limits; None where files have to decide."""
    refs = kept.checkpoint.outputs
    if outputs.keys() != refs.keys() or not refs or kept.reruns.words:
        return None
    if not all(map(_is_plain, refs.values())):
        return None
    exact = kept.reruns.oracle or {}
    large = sum(t.numel() for t, _ in exact.values() if not is_on_host(t))
    if large < LARGE:
        return None
    with undisturbed(kept.differentiates):
        judgement = judgement_without_members(kept)
        if judgement is None or judgement.gates.keys() != refs.keys():
            return None
        judged = []
        for name, gates in judgement.gates.items():
            y = _tensor(gates, outputs[name])
            ratios = None if y is None else _ratios(gates, y)
            if y is None or ratios is None:
                return None
            judged.append(_output(name, gates, ratios, gates.nearest_way(y)))
    of = kept.checkpoint
    return {
        "status": "pass", "block": of.block, "checkpoint": of.id, "reason": "", "outputs": judged,
        "details": [f'output "{it["name"]}": {it["judged"]}' for it in judged],
    }  # fmt: skip


def is_on_host(t: torch.Tensor) -> bool:
    return is_host(t.device)


def _is_plain(ref: OutputRef) -> bool:
    special = (ref.valid, ref.sampled, ref.chained, ref.undecidable, ref.ill_conditioned, ref.legal)
    return all(it is None for it in special) and not ref.left_out and ref.simulated is not None


def _tensor(gates: Gates, output: Output) -> torch.Tensor | None:
    """An output where the reference is; None where it has another dtype or shape."""
    dtype = TORCH_DTYPES.get(output.dtype)
    if dtype != gates.r.dtype or tuple(output.shape) != tuple(gates.r.shape):
        return None
    y = torch.frombuffer(bytearray(output.data), dtype=dtype).reshape(output.shape)
    return y.to(gates.r.device)


def _ratios(gates: Gates, y: torch.Tensor) -> dict[str, float] | None:
    """Shares of the limits, all of which are kept; None where one is not, or may not be."""
    if not bool(gates.r.isfinite().all()) or not gates.scales.all_usable:
        return None
    if not bool(y.isfinite().all()) or not gates.margin(gates.r) <= BELOW:
        return None
    ratios = gates.ratios(y)
    return ratios if ratios and max(ratios.values()) <= BELOW else None


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
