"""What a recorded call can still say once it is judged: what a failure is, what a pass cannot see.

Nothing is recorded again for that: oracle, rounded model and limits are in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch

from ..format.operands import Output
from ..taps.options import Options
from ..trace.blunders import is_part_of
from ..trace.judgement import Judgement
from ..trace.planting import Plantation
from ..trace.simulation import NARROW
from ..trace.trials import Deadline, Trials
from .alternatives import judgement_of, rounded_of
from .one_call import Kept, undisturbed
from .tensors_of_outputs import as_tensor
from .unshown import unshown

FAR = 2.0
"""Of the limit of the whole error. Another way to round has at most 1.5 times the reference's."""


@dataclass
class BlindSpots:
    """What bugs a call that passes does not show."""

    unseen: dict[str, str] = field(default_factory=dict)
    """By the names of bugs what is said of each."""
    tried: int = 0
    listed: int = 0


def alternatives(
    kept: Kept, outputs: Mapping[str, Output], deadline: Deadline, *, most: int
) -> Judgement | None:
    """Other ways to round a call whose `outputs` failed, and of `most` bugs those that this may
    be; None where there is nothing to judge it by once more."""
    with undisturbed(kept.differentiates):
        judgement = judgement_without_members(kept)
        if judgement is None:
            return None
        came = {name: as_tensor(it) for name, it in outputs.items()}
        if _is_narrow(kept) and not _is_far(judgement, came):
            judgement = _with_members(kept, judgement)
        bugs = Plantation()
        if most:
            found = _trials(kept, judgement).of_a_failure(deadline, most, came)
            bugs = Plantation(found.planted, found.same, listed=found.listed)
    return replace(judgement, bugs=bugs) if judgement.members or bugs.planted else None


def passing_bugs(kept: Kept, most: int) -> list[str] | None:
    """Of any bugs the names of those that would pass; None where nothing can be said."""
    with undisturbed(kept.differentiates):
        judgement = judgement_without_members(kept)
        if judgement is None:
            return None
        found = _trials(kept, judgement).of_any_kind(most)
    passing = {bug.name for bug in found.passing}
    planted = sorted(found.planted, key=lambda it: it.margin)
    return [it.bug.told for it in planted if it.name in passing]


def blind_spots(
    kept: Kept, deadline: Deadline, among: Collection[str] | None = None
) -> BlindSpots | None:
    """The gross bugs, of those `among` which it is to look, that this call would pass with; None
    where nothing can be said."""
    with undisturbed(kept.differentiates):
        judgement = judgement_without_members(kept)
        if judgement is None:
            return None
        trials = _trials(kept, judgement)
        operands = unshown(kept, trials.tape, deadline)
        out = BlindSpots({n: words for n, words in operands if among is None or n in among})
        found = trials.of_a_pass(deadline, among)
        out.tried, out.listed = found.tried, found.listed
        unseen = {bug.name: bug.told for bug in found.passing}
        out.unseen |= {
            name: words for name, words in unseen.items() if not is_part_of(name, unseen)
        }
    return out


def judgement_without_members(kept: Kept) -> Judgement | None:
    """The limits of a call's outputs, kept for what else is asked of it."""
    if kept.reruns.judgement is None:
        kept.reruns.judgement = _judgement(kept)
    return kept.reruns.judgement


def _is_far(judgement: Judgement, came: Mapping[str, torch.Tensor]) -> bool:
    """Whether an output is further off than any other way to round it allows."""
    for name, y in came.items():
        gates = judgement.gates.get(name)
        if gates is not None and (y.shape, y.dtype) == (gates.r.shape, gates.r.dtype):
            ratios = gates.ratios(y.to(gates.r.device))
            if max(ratios.get("classes", 0.0), ratios.get("tensor", 0.0)) > FAR:
                return True
    return False


def _with_members(kept: Kept, plain: Judgement) -> Judgement:
    """The same with its members, which are sought once."""
    if kept.with_members is None:
        found = _judgement(kept, plain)
        kept.with_members = found if found is not None and found.members else plain
    return kept.with_members


def _is_narrow(kept: Kept) -> bool:
    """Whether there may be members at all."""
    outputs = kept.reruns.simulated.outputs if kept.reruns.simulated else {}
    return any(stack.dtype in NARROW for stack in outputs.values())


def _judgement(kept: Kept, plain: Judgement | None = None) -> Judgement | None:
    """Without members; with them where those limits are there."""
    return judgement_of(
        kept.block,
        kept.again,
        kept.reruns,
        Options(),
        kept.checkpoint.id,
        bugs=False,
        members=plain is not None,
        known=plain,
    )


def _trials(kept: Kept, judgement: Judgement) -> Trials:
    rounded, free = rounded_of(kept.reruns)
    return Trials(
        kept.again,
        kept.block.outputs,
        judgement.gates,
        kept.checkpoint.id,
        rounded=rounded,
        undecided=kept.reruns.undecided,
        fixed=free is rounded,
        computes=kept.reruns.given is not None and not kept.reruns.given.reads_values,
    )
