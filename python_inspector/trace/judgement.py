"""A call as the harness will judge it from a recording: gates, ways to round, planted bugs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from .following import Way
from .gates import Gates
from .ill_conditioned import of_the_rest, without
from .members import Member, Tries, members_of
from .open_choices import Open
from .planting import (
    MOST_BUGS,
    WORK,
    Listing,
    Plantation,
    Rounded,
    chosen,
    listing_of,
    plant,
)
from .replay import Again, run_rounded
from .spread import Judged, Outputs, Simulated, spreads_of_kinds

RUNS_FOR_MEMBERS = 180
"""Of the code, to find the members of its outputs: two dozen ways, nine of them simulated."""
AT_ONCE = 1 << 16
"""Elements of all operations of a call whose ways to round are tried in one run: a host takes as
long for a small tensor as for a number."""


@dataclass
class Output:
    """One floating output: the reference, and what its errors are measured against."""

    r: torch.Tensor
    against: Judged
    valid: torch.Tensor | None = None
    """Of the output's rank."""


@dataclass
class Judgement:
    members: dict[str, list[Member]] = field(default_factory=dict)
    bugs: Plantation = field(default_factory=Plantation)
    gates: dict[str, Gates] = field(default_factory=dict)


def judgement(
    again: Again,
    outputs: Outputs,
    simulated: Simulated,
    floating: Mapping[str, Output],
    inputs: Sequence[torch.Tensor],
    seed: str,
    *,
    bugs: bool = True,
    members: bool = True,
    rounded: Rounded = run_rounded,
    free: Rounded = run_rounded,
    undecided: Mapping[str, Open] | None = None,
    chooses: bool = True,
    known: Judgement | None = None,
) -> Judgement:
    """Members and planted bugs of a call whose outputs are stored whole.

    `simulated` are its simulated kernels, `floating` its outputs that have limits, `inputs` the
    tensors that a recording stores as its inputs. Members are sought where they are wanted and that
    is affordable, bugs planted where they are wanted, too. `rounded` runs follow the reference's
    choices, `free` ones make their own; `undecided` are choices of which any is right. `chooses`:
    what the code does may hang on values. `known` is a judgement without members and bugs, whose
    limits these are.
    """
    result = Judgement(gates=dict(known.gates) if known else {})
    for name, output in floating.items() if known is None else ():
        stack = simulated.stacks[name]
        kinds = 1 + simulated.truncates
        entries, ill = simulated.spreads.get(name), simulated.ill.get(name)
        if not entries:
            entries = spreads_of_kinds(output.against, stack, kinds=kinds)
            entries, ill = of_the_rest(output.against, stack, entries)
        elif ill is not None:
            output.against.scales = without(output.against.scales, ill)
        if not bool(output.against.scales.usable.any()):
            continue  # nothing is decidable
        spread, *truncated = entries
        valid = output.valid if ill is None else _both(output.valid, ~ill)
        narrow = truncated[0] if truncated else None
        scales, traced = output.against.scales, simulated.operations_of(name)
        result.gates[name] = Gates(
            scales, output.r, stack[0], spread, valid, narrow, traced, inputs
        )
    listing = listing_of(again, seed, rounded, bugs=bugs) if members or bugs else Listing()
    if members and listing.work <= WORK // RUNS_FOR_MEMBERS:
        at_once = not chooses and not listing.reads and listing.work <= AT_ONCE
        tries = Tries(listing.points, at_once)
        result.members = members_of(again, outputs, simulated, result.gates, seed, tries, rounded)
    for name, found in result.members.items():
        ways = [Way(member.name, member.values, member.bits) for member in found]
        result.gates[name] = result.gates[name].with_members(ways)
    if bugs:
        most = min(MOST_BUGS, WORK // max(listing.work, 1))
        planted = chosen(listing.bugs, most, seed)
        result.bugs = plant(again, outputs, result.gates, seed, planted, free, undecided)
        result.bugs.listed = len(listing.bugs)
    return result


def _both(valid: torch.Tensor | None, others: torch.Tensor) -> torch.Tensor:
    return others if valid is None else valid & others
