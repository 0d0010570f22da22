"""Bugs planted in a call that was judged, as long as there is time: what a failure is, and what a
pass cannot see.

The code runs as it is, with one operation changed: that is faster than its rounded model, and shows
the same. Where the code itself, taken apart, is beyond the limits the rounded model runs.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from .blunders import of_a_failure, of_a_pass
from .bugs import Bug, Rule, bugs_of
from .following import SMALL
from .gates import CERTAIN, Gates
from .open_choices import Open
from .planting import (
    MOST_BUGS,
    Listing,
    Planted,
    Rounded,
    Shown,
    chosen,
    first_positions,
    forms,
    is_open,
    positions,
    same_values,
    with_bug,
)
from .replay import Again, Runner, run_as_it_is, run_lifted, run_rounded
from .resolution import same_function
from .simulation import Normals, Simulation
from .sites import Seen, Walk, under
from .spread import Outputs
from .tape import Tape

SECONDS = 5.0
"""That bugs may take by default."""
EXPLAINS = 0.8
"""Of how far an output is off, what a bug that it is named after may leave."""


@dataclass
class Deadline:
    """So many seconds from now on; None: as long as it takes."""

    seconds: float | None
    _start: float = field(default_factory=lambda: time.monotonic())

    @property
    def left(self) -> float | None:
        return None if self.seconds is None else self.seconds + self._start - time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.left is not None and self.left <= 0

    def share(self, count: int) -> Deadline:
        """One of so many parts of what is left, from now on."""
        return Deadline(None if self.left is None else self.left / count)


@dataclass
class Found:
    """What planting some bugs in one call gave."""

    planted: list[Planted] = field(default_factory=list)
    """What shows, in the order of planting."""
    same: list[Bug] = field(default_factory=list)
    """The same bits in all outputs."""
    passing: list[Bug] = field(default_factory=list)
    """Those of both that would pass and are another function, where that was asked."""
    tried: int = 0
    listed: int = 0


class _Compared(Walk):
    """Compares what an operation gives with a bug and without."""

    def __init__(self, bug: Bug) -> None:
        super().__init__(bug.site.op)
        self._bug = bug
        self.same = True

    def visit(self, seen: Seen) -> Any:
        result = seen.run()
        if seen.site == self._bug.site and not seen.writes:
            pairs = zip(tree_leaves(result), tree_leaves(self._bug.change(seen)), strict=True)
            tensors = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor)]
            with _disable_current_modes():  # what is asked here is no operation of the call
                self.same = all(a.shape == b.shape and same_values(a, b) for a, b in tensors)
        return result


_Some = tuple[torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | float"]
"""Places, the numbers there and where they are none, and how far a bug's may be off."""
_Found = Mapping[str, torch.Tensor]
"""Outputs with a bug."""
Look = Callable[[Sequence[_Found]], Sequence[list[Shown]]]
"""From outputs with one bug each to what they show of it."""


class Trials:
    """The bugs of one call and its limits; outputs without `gates` are discrete."""

    def __init__(
        self,
        again: Again,
        outputs: Outputs,
        gates: Mapping[str, Gates],
        seed: str,
        *,
        rounded: Rounded = run_rounded,
        undecided: Mapping[str, Open] | None = None,
        fixed: bool = False,
        computes: bool = True,
    ) -> None:
        """`fixed`: some of what the code computes is taken as given, so that only its rounded
        model, which follows that, can be run. `computes`: it reads no values."""
        self._again, self._outputs, self._gates, self._seed = again, outputs, gates, seed
        self._undecided = undecided or {}
        self._lifted: dict[str, torch.Tensor] | None = None
        self._some: dict[str, _Some] = {}
        """By output some of what came."""
        self._runner: Runner = run_as_it_is
        self._tape = Tape.of(again, outputs) if computes and not fixed else None
        self._right = self._tape.right if self._tape else {} if fixed else self._with(None) or {}
        if fixed or not self._is_right():
            self._tape, self._runner = None, rounded(Simulation(0, Normals(seed)))
            self._right = self._with(None) or {}

    @property
    def tape(self) -> Tape | None:
        """Of the call as it is, where that has one and is within its limits."""
        return self._tape

    def of_a_failure(
        self,
        deadline: Deadline,
        most: int = MOST_BUGS,
        came: Mapping[str, torch.Tensor] | None = None,
    ) -> Found:
        """Any bug that the outputs which `came` may be of, with what to recognise it by, up to the
        first that gives their very values; a margin is the part of it that costs little."""
        bugs, came = self._listed(of_a_failure()), came or {}
        self._some.clear()

        def look(found: Sequence[_Found]) -> list[list[Shown]]:
            return [list(self._recognised(came, it)) for it in found]

        found = chosen(bugs, most, self._seed)
        return self._planted(found, len(bugs), deadline, look, until=functools.partial(_is, came))

    def of_any_kind(self, most: int = MOST_BUGS) -> Found:
        """Any bug with its margin, and which would pass."""
        bugs = self._listed(of_a_failure())
        found = chosen(bugs, most, self._seed)
        return self._planted(found, len(bugs), Deadline(None), self._margins, asked=True)

    def of_a_pass(
        self, deadline: Deadline, among: Collection[str] | None = None, most: int = MOST_BUGS
    ) -> Found:
        """Gross bugs, of these names alone where there are some."""
        bugs = self._listed(of_a_pass())
        if among is not None:
            bugs = [bug for bug in bugs if bug.name in among]
        found = chosen(bugs, most, self._seed)
        return self._planted(found, len(bugs), deadline, self._margins, asked=True)

    def is_another_function(self, bug: Bug) -> bool:
        """Whether a bug that passes is one: in float64 it gives other values than rounding does, or
        the same because its operation has nothing to do on these inputs."""
        try:
            right, wrong = self._in_float64(bug)
        except Exception:  # it cannot be lifted: nothing is known
            return True
        if right is None or wrong is None or right.keys() != wrong.keys():
            return True
        pairs = [(it, wrong[name]) for name, it in right.items()]
        if any(a.shape != b.shape for a, b in pairs):
            return True
        if all(same_values(a, b) for a, b in pairs):
            return bug.kind != "swap" and self._does_nothing(bug)  # swapped operands may be one
        return not all(same_function(a, b) for a, b in pairs)

    def _in_float64(self, bug: Bug) -> tuple[_Found | None, _Found | None]:
        """The outputs without the bug, and with it."""
        if self._tape and (found := self._tape.in_float64(bug)):
            return found
        if self._lifted is None:
            self._lifted = self._run(run_lifted, None)
        return self._lifted, self._run(run_lifted, bug)

    def _does_nothing(self, bug: Bug) -> bool:
        """Whether the operation gives what it gives with the bug in it."""
        compared = _Compared(bug)
        self._again(under(self._runner, lambda: compared))
        return compared.same

    def _is_right(self) -> bool:
        return all(
            _margin_of(self._gates[name], y) <= 1
            for name, y in self._right.items()
            if name in self._gates
        )

    def _listed(self, rules: Iterable[tuple[str, Rule]]) -> list[Bug]:
        rules = list(rules)
        if self._tape is not None:
            return [bug for seen in self._tape.seen for bug in bugs_of(seen, rules)]
        listing = Listing(rules, places=True)
        self._again(under(self._runner, lambda: listing))
        return listing.bugs

    def _planted(
        self,
        bugs: Iterable[Bug],
        listed: int,
        deadline: Deadline,
        look: Look,
        *,
        asked: bool = False,
        until: Callable[[_Found], bool] | None = None,
    ) -> Found:
        """`asked`: whether a bug that would pass is another function. `until`: the last one of
        those that show is one whose outputs are so."""
        out = Found(listed=listed)
        left = itertools.takewhile(lambda bug: not deadline.is_over, bugs)
        planted = ((bug, self._with(bug)) for bug in left)
        size = sum(t.numel() for t in self._right.values())
        at_once = 1 if until or size * MOST_BUGS > SMALL else MOST_BUGS
        while some := list(itertools.islice(planted, at_once)):
            out.tried += len(some)
            made = [(bug, found) for bug, found in some if found is not None]
            made = [(bug, found) for bug, found in made if forms(found) == forms(self._right)]
            for (bug, found), them in zip(made, look([it for _, it in made]), strict=True):
                shown = sorted(them, key=lambda it: -it.margin)
                if shown:
                    out.planted.append(Planted(bug, shown))
                    if until and until(found):
                        return out
                else:
                    out.same.append(bug)
                passes = not shown or shown[0].margin <= 1
                if asked and passes and self.is_another_function(bug):
                    out.passing.append(bug)
        return out

    def _with(self, bug: Bug | None) -> dict[str, torch.Tensor] | None:
        if bug is not None and self._tape and (found := self._tape.with_bug(bug)):
            return found
        return self._run(self._runner, bug)

    def _run(self, runner: Runner, bug: Bug | None) -> dict[str, torch.Tensor] | None:
        named = with_bug(self._again, self._outputs, runner, bug)
        return None if named is None else {name: tensor for name, (tensor, _) in named.items()}

    def _recognised(
        self, came: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]
    ) -> Iterator[Shown]:
        """What to recognise the bug by: the output that it changes the most, where that may have
        come of it."""
        names = list(self._right)
        if len(names) == 1:  # what may not have come of it need not be measured
            names = [name for name in names if self._may_be(name, came.get(name), found[name])]
        most, furthest = 0.0, ""
        for name in names:
            y, right = found[name], self._right[name]
            gates = self._gates.get(name)
            margin = gates.at_least([y])[0] if gates is not None else CERTAIN
            differs = margin > 1 or not same_values(y, right)
            if differs and (not furthest or margin > most):
                most, furthest = margin, name
        if not furthest:
            return
        y = found[furthest]
        if len(self._right) == 1 or self._may_be(furthest, came.get(furthest), y):
            at = positions(y, self._right[furthest])
            yield Shown(furthest, most, at, y.flatten()[at].float())

    def _may_be(self, name: str, came: torch.Tensor | None, y: torch.Tensor) -> bool:
        """Whether an output is a bug's at some of the places by which bugs are recognised."""
        if came is None or came.shape != y.shape:
            return False
        if name not in self._some:
            at = first_positions(y)
            mine = came.to(y.device).flatten()[at].to(y.dtype).double()
            allowed = self._gates[name].allowed(at) if name in self._gates else 0.0
            self._some[name] = at, mine, mine.isnan(), allowed
        at, mine, nowhere, allowed = self._some[name]
        theirs = y.flatten()[at].double()
        same = (mine == theirs) | (nowhere & theirs.isnan())
        same |= (mine - theirs).abs() <= allowed
        return bool(same.all()) and self._explains(name, came.to(y.device), y)

    def _explains(self, name: str, came: torch.Tensor, y: torch.Tensor) -> bool:
        """Whether most of what an output is off is what the bug does: one that changes little may
        be within what is allowed wherever another fault is not."""
        right = self._right[name]
        both = came.isfinite() & y.isfinite() & right.isfinite()
        mine, theirs, own = (t[both].double() for t in (came, y, right))
        return float((mine - theirs).norm()) <= EXPLAINS * float((mine - own).norm())

    def _margins(self, found: Sequence[_Found]) -> list[list[Shown]]:
        """How far outputs that differ are beyond the limits, up to the first that is at all."""
        shown: list[list[Shown]] = [[] for _ in found]
        nothing = torch.empty(0)
        for name, right in self._right.items():
            left = [i for i, before in enumerate(shown) if not before or before[-1].margin <= 1]
            margins = self._margins_of(name, [found[i][name] for i in left], right)
            for i, margin in zip(left, margins, strict=True):
                if margin is not None:
                    shown[i].append(Shown(name, margin, nothing, nothing))
        return shown

    def _margins_of(
        self, name: str, outputs: Sequence[torch.Tensor], right: torch.Tensor
    ) -> list[float | None]:
        """Those of outputs of one name, None of the right one."""
        gates = self._gates.get(name)
        if gates is None:
            return [None if same_values(y, right) else self._of_a_choice(name, y, right)
                    for y in outputs]  # fmt: skip
        if not outputs:
            return []
        found: list[float | None] = [*gates.at_least(outputs)]
        near = [i for i, margin in enumerate(found) if margin is not None and margin <= 1]
        differ = [i for i in near if not same_values(outputs[i], right)]
        margins = gates.margins([outputs[i] for i in differ]) if differ else []
        found = [None if i in near else margin for i, margin in enumerate(found)]
        for i, margin in zip(differ, margins, strict=True):
            found[i] = margin
        return found

    def _of_a_choice(self, name: str, y: torch.Tensor, right: torch.Tensor) -> float:
        return 0.0 if y.is_floating_point() or is_open(name, y, right, self._undecided) else CERTAIN


def _margin_of(gates: Gates, y: torch.Tensor) -> float:
    """Of what most often is the reference again."""
    same = (y.dtype, y.shape) == (gates.r.dtype, gates.r.shape) and torch.equal(y, gates.r)
    return gates.margin_of_r if same else gates.margin(y)


def _is(came: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> bool:
    """Whether these are the very outputs that came."""
    return came.keys() == found.keys() and all(
        (t.dtype, t.shape) == (found[name].dtype, found[name].shape)
        and same_values(t.to(found[name].device), found[name])
        for name, t in came.items()
    )
