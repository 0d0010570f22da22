"""What else a call could have given: other ways to round it, and bugs planted in it, stored."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from ..format.recording import BugRef, MemberRef, is_recorded_alone
from ..format.sampled import is_sampled
from ..format.writer import TakesTensors
from ..taps.calls import Block
from ..taps.options import Options
from ..trace.judgement import Judgement, Output, judgement
from ..trace.planting import Rounded
from ..trace.replay import Again, run_as_it_is, run_rounded
from ..trace.reruns import Reruns
from ..trace.spread import Judged, judged
from .outputs import aligned


def judgement_of(
    block: Block,
    again: Again,
    reruns: Reruns,
    options: Options,
    seed: str,
    *,
    bugs: bool,
    members: bool = True,
    known: Judgement | None = None,
) -> Judgement | None:
    """Of a call without a native block whose outputs are stored whole; None for any other. `known`
    has its limits, where they are known."""
    if not is_recorded_alone(block.kind, block.params) or not options.bugs:
        return None
    if reruns.simulated is None or reruns.oracle is None:
        return None
    floating = {} if known else _floating(block, again, reruns, options)
    if floating is None:
        return None
    given = reruns.given
    rounded, free = rounded_of(reruns)
    return judgement(
        again,
        block.outputs,
        reruns.simulated,
        floating,
        [tensor for tensor, _ in block.inputs.values()],
        seed,
        bugs=bugs,
        members=members,
        rounded=rounded,
        free=free,
        undecided=reruns.undecided,
        chooses=given is None or bool(given.events) or given.reads_values or given.leaves_torch,
        known=known,
    )


def _floating(
    block: Block, again: Again, reruns: Reruns, options: Options
) -> dict[str, Output] | None:
    """The outputs that have limits; None where some are not stored whole."""
    assert reruns.simulated is not None and reruns.oracle is not None
    repeated = reruns.repeated
    if repeated is None:
        rerun = again(run_as_it_is)
        repeated = block.outputs(rerun.result, rerun.twin)
    floating = {}
    for name, (o, axes) in reruns.oracle.items():
        r = repeated[name][0]
        stack = reruns.simulated.outputs[name]
        if is_sampled(r, axes, options.what.sampling):
            return None
        if not r.is_floating_point() or (stack.dtype, stack.shape[1:]) != (r.dtype, r.shape):
            continue
        if r.dtype == torch.float64:
            continue
        valid = block.valid.get(name)
        mask = None if valid is None else aligned(valid, axes)
        stored = r.double() + (o.double() - r.double()).float().double()
        against = reruns.simulated.against.get(name)
        if against is None or mask is not None or not _is_of(against, stored, axes):
            against = judged(stored, axes, mask, None, r.dtype)
        floating[name] = Output(r, replace(against), mask)
    return floating


def _is_of(against: Judged, stored: torch.Tensor, axes: Sequence[str]) -> bool:
    """Whether samples were measured against this."""
    scales, layout = against.scales, against.layout
    same = layout.whole and (layout.shape, layout.axes) == (tuple(stored.shape), tuple(axes))
    return same and scales.all_usable and torch.equal(layout.matrix(stored), scales.o)


def rounded_of(reruns: Reruns) -> tuple[Rounded, Rounded]:
    """Makes runners that follow what the reference chose, and such that choose for themselves; the
    same where some of what the code computes is taken as given."""
    given = reruns.given
    rounded = functools.partial(run_rounded, given=given)
    if given is not None and (given.opaque or given.kept):
        return rounded, rounded
    return rounded, functools.partial(run_rounded, wrapped=given is not None and given.wrapped)


def member_refs(writer: TakesTensors, judgement: Judgement | None, name: str) -> list[MemberRef]:
    """The members of an output."""
    if judgement is None:
        return []
    members = judgement.members.get(name, [])
    return [MemberRef(m.name, writer.tensor(m.values), m.bits) for m in members]


def bug_refs(
    writer: TakesTensors, judgement: Judgement | None, outputs: Collection[str] | None = None
) -> list[BugRef]:
    """The bugs of a call that these outputs (None: any) show, the least beyond a limit first."""
    if judgement is None:
        return []
    refs = []
    for planted in judgement.bugs.planted:
        among = [shown for shown in planted.shown if outputs is None or shown.output in outputs]
        if not among:  # in a state alone, which a part of the call changes and has
            continue
        shown = among[0]
        margin = float(f"{shown.margin:.3g}")
        keys = (writer.tensor(shown.at), writer.tensor(shown.values))
        name = planted.bug.told
        refs.append(BugRef(name, planted.bug.kind, shown.output, margin, *keys))
    return sorted(refs, key=lambda ref: ref.margin)
