"""Other rounding points of the same trace: what a kernel may keep in float32 and still be right.

A 16-bit run rounds after every operation. A kernel that keeps some results in float32 has other
bits in a tenth of its outputs and more, and loses less. The rounded model is run again with some
roundings left out, and simulated kernels of that say how many of its bits are open.

A kernel that rounds what is scaled otherwise, as flash attention does the weights of a softmax, has
errors of the same size, but others: where summands cancel, those of one run say little. So what is
inside is rounded at other scales, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import native
from ..format.recording import as_number
from .following import ONCE
from .gates import Gates
from .planting import Rounded
from .replay import Again, run_rounded
from .simulation import NARROW, Normals, Simulation, TooLargeError
from .sites import Seen, Site, Walk, under
from .spread import Outputs, Simulated, stack_of, summaries

MOST_MEMBERS = 9
"""Of one output."""
SUBSETS = 4
"""Rounding points up to which all subsets are tried."""
TRIED = 24
"""Sets of points that are tried otherwise, besides all of them."""
MANY = 16
"""Points of a composite beyond which nothing is tried but all of them: its parts have theirs."""


SCALES = (0.55, 0.65, 0.75, 0.85)
"""At which what is inside is rounded, for other errors of the same size."""


NO_OTHERS = [0.0, 0.0, 0.0]
"""Bits that are followed to the last."""


@dataclass(frozen=True)
class Kept:
    """What is kept in float32, by place in the list of operations; rounded at a scale, if any."""

    name: str
    kept: frozenset[int]
    scale: float = 0.0


@dataclass
class Member:
    name: str
    values: torch.Tensor
    bits: list[float]
    """Mean, deviation and largest count of elements that simulated kernels have otherwise."""


class _Points(Walk):
    """Which operation of the code each entry of the list of operations comes from."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._operations = simulation.operations
        self.sites: dict[int, Site] = {}

    def visit(self, seen: Seen) -> Any:
        first = len(self._operations)
        result = seen.run()
        for place in range(first, len(self._operations)):
            self.sites[place] = seen.site
        return result


def points_of(again: Again, seed: str, rounded: Rounded = run_rounded) -> dict[int, Site]:
    """The roundings to 16 bits of a call, by place in its list of operations."""
    simulation = Simulation(0, Normals(seed))
    points = _Points(simulation)
    again(under(rounded(simulation), lambda: points))
    narrow = {i for i, e in enumerate(simulation.operations) if e["stores"] in ("f16", "bf16")}
    return {place: site for place, site in points.sites.items() if place in narrow}


def ways_of(points: Mapping[int, Site], others: Collection[int] = ()) -> list[Kept]:
    """Of an output that is rounded at these points: all kept, all but one, one; all subsets of few.
    The `others` of a call do not matter to it, and are kept where all are: so outputs share runs.
    """
    every = frozenset(points) | frozenset(others)
    if len(points) < 1:
        return []
    found = [Kept(ONCE, every)]
    if len(points) <= SUBSETS:
        for size in range(1, len(points)):
            for kept in itertools.combinations(points, size):
                names = ", ".join(str(points[place]) for place in kept)
                found.append(Kept(f"keeps {names} in float32", frozenset(kept)))
        return found
    if len(points) > MANY:
        return found
    step = -(-2 * len(points) // TRIED)
    for place in list(points)[::step]:
        site = points[place]
        found.append(Kept(f"keeps all in float32 but {site}", every - {place}))
        found.append(Kept(f"keeps {site} in float32", frozenset({place})))
    return found


def members_of(
    again: Again,
    outputs: Outputs,
    simulated: Simulated,
    gates: Mapping[str, Gates],
    seed: str,
    rounded: Rounded = run_rounded,
) -> dict[str, list[Member]]:
    """The members of each 16-bit output."""
    least = native.judge_library().least_bits
    models = {name: stack[0] for name, stack in simulated.stacks.items()}
    narrow = [k for k, m in models.items() if m.dtype in NARROW and m.numel() >= least]
    narrow = [k for k in narrow if k in gates]
    if not narrow:
        return {}
    points = points_of(again, seed, rounded)
    tried: dict[Kept, dict[str, torch.Tensor]] = {}
    ways: dict[str, list[Kept]] = {}
    for name in narrow:
        own = {place: points[place] for place in simulated.places_of(name) if place in points}
        for way in (of_output := ways_of(own, points)):
            if way not in tried:
                simulation = Simulation(0, Normals(seed), kept=way.kept)
                stacks = _outputs(again, outputs, rounded, simulation)
                tried[way] = {k: stacks[k][0] for k in narrow}
        ways[name] = _distinct([(way, tried[way][name]) for way in of_output], gates[name])
    needed = {way.name: way for chosen in ways.values() for way in chosen}
    found: dict[str, list[Member]] = {name: [] for name in narrow}
    for way in needed.values():
        stacks = _simulated(again, outputs, rounded, way, simulated.runs, seed)
        for name in narrow:
            if way in ways[name] and gates[name].tensor_no_less_accurate(stacks[name][0]):
                differ = gates[name].scales.differing(stacks[name][1:], stacks[name][:1])
                (figures,) = summaries({"bits": differ})
                found[name].append(Member(way.name, stacks[name][0], figures["bits"]))
    last = {max(simulated.places_of(name), default=-1) for name in narrow}
    for way in _scaled(frozenset(points) - last):
        stacks = _simulated(again, outputs, rounded, way, 0, seed)
        for name in narrow:
            if gates[name].tensor_no_less_accurate(stacks[name][0]):
                found[name].append(Member(way.name, stacks[name][0], NO_OTHERS))
    return {name: members for name, members in found.items() if members}


def _scaled(inside: frozenset[int]) -> list[Kept]:
    """Nothing follows the bits of these; their errors are those that a right kernel may have."""
    if not inside:
        return []
    return [
        Kept(f"rounds what is inside at {scale:g} of its size", inside, scale) for scale in SCALES
    ]


def _simulated(
    again: Again, outputs: Outputs, rounded: Rounded, way: Kept, runs: int, seed: str
) -> dict[str, torch.Tensor]:
    """Fewer kernels where so many do not fit."""
    while True:
        normals = Normals(f"{seed} {way.name}")
        simulation = Simulation(runs, normals, kept=way.kept, scale=way.scale)
        try:
            return _outputs(again, outputs, rounded, simulation)
        except TooLargeError:
            runs = max(1, runs // 2)


def _outputs(
    again: Again, outputs: Outputs, rounded: Rounded, simulation: Simulation
) -> dict[str, torch.Tensor]:
    """The stack of each output, in its dtype: what is kept wide inside is rounded here."""
    rerun = again(rounded(simulation))
    named = outputs(rerun.result, rerun.twin)
    return {name: stack_of(simulation, tensor) for name, (tensor, _) in named.items()}


def _distinct(tried: Sequence[tuple[Kept, torch.Tensor]], gates: Gates) -> list[Kept]:
    """Those whose bits neither the model's limit covers nor one that is chosen; the one that is
    furthest from all that are there comes next."""
    covered = native.judge_library().bits_limit(*map(as_number, gates.spread["bits"]))
    distance = [float(gates.differing(y, gates.m)) for _, y in tried]
    chosen: list[Kept] = []
    while len(chosen) < MOST_MEMBERS and len(chosen) < len(tried):
        if not chosen and distance[0] > covered:
            at = 0  # all kept is what most kernels do
        else:
            at = max(range(len(tried)), key=distance.__getitem__)
        if distance[at] <= covered:
            break
        way, values = tried[at]
        chosen.append(way)
        for i, (_, y) in enumerate(tried):
            distance[i] = min(distance[i], float(gates.differing(y, values)))
    return chosen
