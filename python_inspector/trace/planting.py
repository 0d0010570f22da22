"""Bugs planted in a call's own trace, and how far each is beyond the limits.

The rounded model is run again with one operation changed. A bug whose outputs are the model's bit
for bit is none on these inputs; one whose margin is at most 1 would pass.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from ..format.axes import Named
from .bugs import RULES, Bug, Rule, bugs_of
from .gates import CERTAIN, Gates
from .open_choices import Open
from .replay import Again, Runner, run_rounded
from .simulation import Normals, Simulation
from .sites import Seen, Site, Walk, place_of_call, under
from .spread import Outputs

MOST_BUGS = 40
"""Of one call."""
WORK = 1 << 27
"""Elements that all runs with a bug may compute: of a large call fewer bugs are planted."""
ALIKE = 2
"""Bugs that differ in their place alone, before all others have had their turn."""
POSITIONS = 64
"""Elements of an output by which a bug is recognised."""


@dataclass
class Shown:
    """What one output shows of a bug."""

    output: str
    margin: float
    at: torch.Tensor
    values: torch.Tensor


@dataclass
class Planted:
    """A bug as one call shows it: every output that differs, the furthest beyond a limit first."""

    bug: Bug
    shown: list[Shown]

    @property
    def name(self) -> str:
        return self.bug.name

    @property
    def margin(self) -> float:
        return self.shown[0].margin


@dataclass
class Plantation:
    """What planting gave: bugs that show, and names of those that cannot."""

    planted: list[Planted] = field(default_factory=list)
    same: list[Bug] = field(default_factory=list)
    """The same bits in all outputs."""
    broken: list[Bug] = field(default_factory=list)
    """The changed code does not run to its end."""
    listed: int = 0
    """Bugs that the operations can have, of which those planted were chosen."""


class Listing(Walk):
    """Every bug that an operation of a call can have, and how many elements a run computes."""

    def __init__(
        self,
        rules: Sequence[tuple[str, Rule]] = tuple(RULES.items()),
        *,
        places: bool = False,
        operations: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """With `places` bugs know the line of code that calls their operation. `operations` is the
        list that a rounded run makes meanwhile."""
        super().__init__()
        self._rules = rules
        self._places = places
        self._operations = operations
        self.bugs: list[Bug] = []
        self.work = 0
        self.reads = False
        """Whether the code has a value of a tensor, and may do by it what comes next."""
        self._sites: dict[int, Site] = {}

    @property
    def points(self) -> dict[int, Site]:
        """The roundings to 16 bits, by place in the list of operations."""
        narrow = {i for i, it in enumerate(self._operations) if it["stores"] in ("f16", "bf16")}
        return {place: site for place, site in self._sites.items() if place in narrow}

    def form(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.reads = self.reads or func is torch.ops.aten._local_scalar_dense.default
        return super().form(func, args, kwargs)

    def visit(self, seen: Seen) -> Any:
        if self._places:
            seen.place = place_of_call()
        first = len(self._operations)
        seen.result = seen.run()
        self._sites.update(dict.fromkeys(range(first, len(self._operations)), seen.site))
        self.bugs.extend(bugs_of(seen, self._rules))
        self.work += sum(t.numel() for t in tree_leaves(seen.result) if isinstance(t, torch.Tensor))
        return seen.result


class _Planting(Walk):
    def __init__(self, bug: Bug) -> None:
        super().__init__(bug.site.op)
        self._bug = bug

    def visit(self, seen: Seen) -> Any:
        return self._bug.change(seen) if seen.site == self._bug.site else seen.run()


Rounded = Callable[[Simulation], Runner]
"""Makes the runner of a simulation: run_rounded, or one that follows given choices."""


def listing_of(
    again: Again, seed: str, rounded: Rounded = run_rounded, *, bugs: bool = True
) -> Listing:
    """Of a call's rounded model; `bugs`: whether they are wanted, too."""
    simulation = Simulation(0, Normals(seed))
    rules = tuple(RULES.items()) if bugs else ()
    listing = Listing(rules, operations=simulation.operations)
    again(under(rounded(simulation), lambda: listing))
    return listing


def with_bug(
    again: Again, outputs: Outputs, runner: Runner, bug: Bug | None
) -> dict[str, Named] | None:
    """The outputs of the call with the bug in it; None where the bug keeps it from its end."""
    mode = functools.partial(Walk, "") if bug is None else functools.partial(_Planting, bug)
    try:
        rerun = again(under(runner, mode))
        return outputs(rerun.result, rerun.twin)
    except (RuntimeError, ValueError, IndexError, TypeError):
        if bug is None:  # then the error is ours
            raise
        return None  # another shape, an index beyond the end: such a bug shows itself


def chosen(bugs: Sequence[Bug], most: int, seed: str) -> list[Bug]:
    """At most so many: alternating kinds, and within a kind operations that differ first."""
    queues: dict[str, list[Bug]] = defaultdict(list)
    for bug in bugs:
        queues[bug.kind].append(bug)
    ordered = [iter(_spread_out(queue, seed)) for queue in queues.values()]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*ordered))
    return list(itertools.islice((bug for bug in in_turn if bug is not None), most))


def _spread_out(bugs: list[Bug], seed: str) -> list[Bug]:
    """In an order that only the names decide; the third of a pattern comes after all others."""
    shuffled = sorted(bugs, key=lambda bug: hashlib.sha256(f"{seed} {bug.name}".encode()).digest())
    seen: dict[tuple[Any, ...], int] = defaultdict(int)
    ranked = []
    for bug in shuffled:
        ranked.append((seen[bug.pattern] // ALIKE, bug))
        seen[bug.pattern] += 1
    return [bug for _, bug in sorted(ranked, key=lambda item: item[0])]


def plant(
    again: Again,
    outputs: Outputs,
    gates: Mapping[str, Gates],
    seed: str,
    bugs: Sequence[Bug],
    rounded: Rounded = run_rounded,
    undecided: Mapping[str, Open] | None = None,
) -> Plantation:
    """Plants bugs in a call and judges each output by its gates.

    Outputs without gates are discrete: each element counts that is not `undecided`. Choices inside
    are the bug's own.
    """
    result = Plantation()
    right = _planted(again, outputs, rounded, seed, None)
    assert right is not None
    for bug in bugs:
        found = _planted(again, outputs, rounded, seed, bug)
        if found is None or forms(found) != forms(right):
            result.broken.append(bug)
            continue
        planted = _judged(bug, found, right, gates, undecided or {})
        if planted is None:
            result.same.append(bug)
        else:
            result.planted.append(planted)
    return result


def _planted(
    again: Again, outputs: Outputs, rounded: Rounded, seed: str, bug: Bug | None
) -> dict[str, torch.Tensor] | None:
    """The outputs of the rounded model with the bug in it, or None."""
    named = with_bug(again, outputs, rounded(Simulation(0, Normals(seed))), bug)
    return None if named is None else {name: tensor for name, (tensor, _) in named.items()}


def forms(named: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: (t.shape, t.dtype) for name, t in named.items()}


def _judged(
    bug: Bug,
    found: Mapping[str, torch.Tensor],
    right: Mapping[str, torch.Tensor],
    gates: Mapping[str, Gates],
    undecided: Mapping[str, Open],
) -> Planted | None:
    """None where no output differs from the model."""
    shown = []
    for name, m in right.items():
        y = found[name]
        if same_values(y, m):
            continue
        if name in gates:
            margin = gates[name].margin(y)
        else:
            margin = 0.0 if y.is_floating_point() or is_open(name, y, m, undecided) else CERTAIN
        at = positions(y, m)
        shown.append(Shown(name, margin, at, y.flatten()[at].float()))
    shown.sort(key=lambda output: -output.margin)
    return Planted(bug, shown) if shown else None


def is_open(name: str, y: torch.Tensor, m: torch.Tensor, undecided: Mapping[str, Open]) -> bool:
    """Whether every choice that differs is another one that is right."""
    return name in undecided and undecided[name].allows(y, m)


def same_values(y: torch.Tensor, m: torch.Tensor) -> bool:
    return bool(((y == m) | ((y != y) & (m != m))).all())


@functools.lru_cache(maxsize=16)
def _spread_over(size: int, device: torch.device) -> torch.Tensor:
    return torch.arange(POSITIONS, device=device) * size // POSITIONS


def positions(y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Where to recognise y: half the places are where it is furthest from m, half anywhere."""
    size = y.numel()
    if size <= POSITIONS:
        return torch.arange(size, device=y.device)
    off = (y.flatten().double() - m.flatten().double()).abs().nan_to_num(torch.inf)
    furthest = off.topk(POSITIONS // 2).indices
    anywhere = _spread_over(size, y.device)
    known = (anywhere[:, None] == furthest).any(1)  # torch.isin takes ten times as long
    rest = anywhere[~known][: POSITIONS - len(furthest)]
    return torch.cat([furthest, rest]).sort().values


def first_positions(y: torch.Tensor) -> torch.Tensor:
    """Places that are among positions() of y, whatever the other output is."""
    size = y.numel()
    if size <= POSITIONS:
        return torch.arange(size, device=y.device)
    return _spread_over(size, y.device)[: POSITIONS // 2]
