"""What a recorded call can still say once it is judged: what a failure is, what a pass cannot see.

Nothing is recorded again for that: oracle, rounded model and limits are in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch

from ..taps.options import Options, Proof
from ..trace.blunders import is_part_of
from ..trace.judgement import Judgement
from ..trace.planting import Plantation
from ..trace.trials import Deadline, Trials
from .alternatives import judgement_of, rounded_of
from .one_call import Kept, undisturbed


@dataclass
class BlindSpots:
    """What bugs a call that passes does not show."""

    unseen: dict[str, str] = field(default_factory=dict)
    """By the names of bugs what is said of each."""
    tried: int = 0
    listed: int = 0


def alternatives(kept: Kept, deadline: Deadline, *, most: int) -> bool:
    """Seeks other ways to round the call, and at `most` so many bugs for its failure to be; whether
    there is anything to judge it by once more. They are recorded with the call from then on."""
    with undisturbed(kept.differentiates):
        judgement = _judgement(kept, members=True)
        if judgement is None:
            return False
        if most:
            found = _trials(kept, judgement).of_a_failure(deadline, most)
            judgement.bugs = Plantation(found.planted, found.same, listed=found.listed)
    kept.reruns.judgement = judgement
    return bool(judgement.members or judgement.bugs.planted)


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
        alike = {name: words for name, words in _alike(kept) if among is None or name in among}
        out = BlindSpots(alike)
        found = _trials(kept, judgement).of_a_pass(deadline, among)
        out.tried, out.listed = found.tried, found.listed
        unseen = {bug.name: bug.told for bug in found.passing}
        out.unseen |= {
            name: words for name, words in unseen.items() if not is_part_of(name, unseen)
        }
    return out


def judgement_without_members(kept: Kept) -> Judgement | None:
    """The limits of a call's outputs, kept for what else is asked of it."""
    if kept.reruns.judgement is None:
        kept.reruns.judgement = _judgement(kept, members=False)
    return kept.reruns.judgement


def _judgement(kept: Kept, *, members: bool) -> Judgement | None:
    return judgement_of(
        kept.block,
        kept.again,
        kept.reruns,
        Options(proof=Proof(bugs=True)),
        kept.checkpoint.id,
        bugs=False,
        members=members,
    )


def _trials(kept: Kept, judgement: Judgement) -> Trials:
    rounded, fixed = rounded_of(kept.reruns)
    return Trials(
        kept.again,
        kept.block.outputs,
        judgement.gates,
        kept.checkpoint.id,
        rounded=rounded,
        undecided=kept.reruns.undecided,
        fixed=fixed,
    )


def _alike(kept: Kept) -> Iterator[tuple[str, str]]:
    """Index operands whose values are equal along an axis: what is read at another index there
    gives the same."""
    for name, (tensor, _) in kept.block.inputs.items():
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            continue
        for axis, size in enumerate(tensor.shape):
            if size > 1 and bool((tensor == tensor.narrow(axis, 0, 1)).all()):
                words = f"the index of axis {axis} at which {name} is read: all are equal"
                yield f"{name} along {axis}", words
