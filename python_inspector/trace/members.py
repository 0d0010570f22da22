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

import torch

from .. import native
from ..format.recording import as_number
from .following import ONCE
from .gates import Gates
from .planting import Rounded
from .replay import Again, run_rounded
from .simulation import NARROW, Normals, Simulation, TooLargeError
from .sites import Site
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


@dataclass(frozen=True)
class Tries:
    """Where a call rounds to 16 bits, and how ways to round it are tried."""

    points: Mapping[int, Site]
    """By place in its list of operations."""
    at_once: bool = False
    """All in one run: the code does the same whatever its values are, and its tensors are small."""


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
    tries: Tries,
    rounded: Rounded = run_rounded,
) -> dict[str, list[Member]]:
    """The members of each 16-bit output."""
    least = native.judge_library().least_bits
    models = {name: stack[0] for name, stack in simulated.stacks.items()}
    narrow = [k for k, m in models.items() if m.dtype in NARROW and m.numel() >= least]
    narrow = [k for k in narrow if k in gates]
    if not narrow:
        return {}
    points, call = tries.points, Call(again, outputs, rounded, seed)
    own: dict[str, list[Kept]] = {}
    for name in narrow:
        places = simulated.places_of(name)
        own[name] = ways_of({place: points[place] for place in places if place in points})
    last = {max(simulated.places_of(name), default=-1) for name in narrow}
    scaled = _scaled(frozenset(points) - last)
    every = list(dict.fromkeys(way for of_output in own.values() for way in of_output))
    tried = call.at_once([*every, *scaled]) if tries.at_once else {}
    for way in every:
        if way not in tried:
            tried[way] = call.alone(way, narrow)
    ways = {
        name: _distinct([(way, tried[way][name]) for way in own[name]], gates[name])
        for name in narrow
    }
    needed = {way.name: way for chosen in ways.values() for way in chosen}
    found: dict[str, list[Member]] = {name: [] for name in narrow}
    for way in needed.values():
        stacks = call.simulated(way, simulated.runs)
        for name in narrow:
            if way in ways[name] and gates[name].tensor_no_less_accurate(stacks[name][0]):
                differ = gates[name].scales.differing(stacks[name][1:], stacks[name][:1])
                (figures,) = summaries({"bits": differ})
                found[name].append(Member(way.name, stacks[name][0], figures["bits"]))
    for way in scaled:
        values = tried[way] if way in tried else call.alone(way, narrow)
        for name in narrow:
            if gates[name].tensor_no_less_accurate(values[name]):
                found[name].append(Member(way.name, values[name], NO_OTHERS))
    return {name: members for name, members in found.items() if members}


def _scaled(inside: frozenset[int]) -> list[Kept]:
    """Nothing follows the bits of these; their errors are those that a right kernel may have."""
    if not inside:
        return []
    return [
        Kept(f"rounds what is inside at {scale:g} of its size", inside, scale) for scale in SCALES
    ]


@dataclass(frozen=True)
class Call:
    """A call that is run with some roundings left out."""

    again: Again
    outputs: Outputs
    rounded: Rounded
    seed: str

    def alone(self, way: Kept, names: Collection[str]) -> dict[str, torch.Tensor]:
        """What such a kernel gives, in a run of its own."""
        simulation = Simulation(0, Normals(self.seed), kept=way.kept, scale=way.scale)
        stacks = self._stacks(simulation)
        return {name: stacks[name][0] for name in names}

    def at_once(self, ways: Sequence[Kept]) -> dict[Kept, dict[str, torch.Tensor]]:
        """What kernels give that round in each of these ways, in one run."""
        stacks = self._stacks(Simulation(0, Normals(self.seed), ways=ways))
        return {
            way: {name: stack[i] for name, stack in stacks.items()} for i, way in enumerate(ways, 1)
        }

    def simulated(self, way: Kept, runs: int) -> dict[str, torch.Tensor]:
        """The same kernel, and so many simulated ones like it; fewer where so many do not fit."""
        while True:
            normals = Normals(f"{self.seed} {way.name}")
            try:
                return self._stacks(Simulation(runs, normals, kept=way.kept, scale=way.scale))
            except TooLargeError:
                runs = max(1, runs // 2)

    def _stacks(self, simulation: Simulation) -> dict[str, torch.Tensor]:
        """Of each output, in its dtype: what is kept wide inside is rounded here."""
        rerun = self.again(self.rounded(simulation))
        named = self.outputs(rerun.result, rerun.twin)
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
