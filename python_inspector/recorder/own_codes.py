"""Which codes a kernel has rounded to, where a value near the middle of two may become either.

Simulated kernels have either. In a small call that moves them so far that limits which allow it
allow values that were not rounded at all. So what passes is held once more to the codes that fit it
best, which all simulated kernels have then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..format.operands import Output
from ..trace.choices import deciding
from ..trace.failing import OF_BITS as OF_BITS
from ..trace.given import Choice, Follow, Given, GivenError, Replay
from ..trace.replay import run_following
from .one_call import Kept, undisturbed
from .tensors_of_outputs import as_tensor

MOST = 64
"""Codes that are open."""
TOGETHER = 10
"""Of those that move the same outputs: all ways to choose them are compared."""
WAYS = 4
"""To choose them that are believed: by one the kernel has to be right."""
Codes = list[torch.Tensor]
WORDS = (
    "it was held to the codes that fit it best, of those that a value in the middle of two may have"
)


@dataclass(frozen=True)
class _Other:
    """One code that may be another."""

    choice: Choice
    at: int
    value: float


def codes_that_fit(kept: Kept, outputs: Mapping[str, Output]) -> list[Codes]:
    """All that the call rounds to few values, as these outputs have it most likely, the likeliest
    first; none where nothing is open, or too much."""
    given = kept.reruns.given
    others = [] if given is None else _others_of(given)
    if given is None or not 0 < len(others) <= MOST:
        return []
    came = {name: as_tensor(it) for name, it in outputs.items()}
    exact = {name: o for name, (o, _) in (kept.reruns.oracle or {}).items()}
    forms = {name: t.shape for name, t in came.items()}
    if forms != {name: o.shape for name, o in exact.items()}:
        return []
    if not all(t.is_floating_point() and bool(t.isfinite().all()) for t in came.values()):
        return []
    with undisturbed(kept.differentiates):
        ways = [_Way([other]) for other in others]
        found = [way.outputs(kept, given) for way in ways]
        if not all(it is not None and not way.is_deep for it, way in zip(found, ways, strict=True)):
            return []
        sizes = {name: o.norm().clamp_min(torch.finfo(o.dtype).tiny) for name, o in exact.items()}

        def off(of: Mapping[str, torch.Tensor]) -> torch.Tensor:
            parts = [(of[n].to(o.device).double() - o) / sizes[n] for n, o in exact.items()]
            return torch.cat([part.flatten() for part in parts])

        likely = _likely(off(came), torch.stack([off(it) for it in found if it is not None]))
        codes = []
        for chosen in likely:
            way = _Way([other for other, is_there in zip(others, chosen, strict=True) if is_there])
            if way.outputs(kept, given) is not None and not way.is_deep:
                codes.append(way.codes)
    return codes


def _others_of(given: Given) -> list[_Other]:
    """Of values that are rounded; what was rounded before and is stored as another dtype has no
    codes of its own."""
    found = []
    for choice in given.choices:
        if not choice.quantised or choice.doubtful is None or choice.operands is None:
            continue
        held, x = choice.held[0].double().flatten(), choice.operands[0][0].double().flatten()
        open_there = choice.doubtful.flatten() & (held != x)
        if int(open_there.sum()) > MOST:
            return [_Other(choice, 0, 0.0)] * (MOST + 1)
        values = torch.stack([it.double().flatten() for it in choice.others])
        for at in open_there.nonzero().flatten().tolist():
            every = set(values[:, at].tolist()) - {float(held[at])}
            found += [_Other(choice, at, value) for value in sorted(every)]
    return found


def _likely(off: torch.Tensor, moves: torch.Tensor) -> list[list[bool]]:
    """Which of `moves` [k, n] together are nearest to what outputs are `off` [n]: some ways. None
    where too many of them move the same elements, as the codes of a row do."""
    best = [False] * len(moves)
    others: list[tuple[float, list[int], list[bool]]] = []
    for part in _apart(moves != 0):
        if len(part) > TOGETHER:
            return []
        (least, nearest), *rest = _nearest(off, moves[part])
        for place, is_there in zip(part, nearest, strict=True):
            best[place] = is_there
        others += [(distance - least, part, chosen) for distance, chosen in rest]
    ways = [best]
    for _, part, chosen in sorted(others, key=lambda it: it[0])[: WAYS - 1]:
        other = list(best)
        for place, is_there in zip(part, chosen, strict=True):
            other[place] = is_there
        ways.append(other)
    return ways


def _nearest(off: torch.Tensor, moves: torch.Tensor) -> list[tuple[float, list[bool]]]:
    """The ways to choose `moves` that come nearest to `off`, and how far that is."""
    places = torch.arange(len(moves), device=off.device)
    chosen = ((torch.arange(1 << len(moves), device=off.device)[:, None] >> places) & 1).double()
    squares = ((chosen @ (moves @ moves.T)) * chosen).sum(1) - 2 * chosen @ (moves @ off)
    nearest = squares.topk(min(WAYS, len(squares)), largest=False)
    return [
        (distance, [bool(it) for it in chosen[at]])
        for distance, at in zip(nearest.values.tolist(), nearest.indices.tolist(), strict=True)
    ]


def _apart(reach: torch.Tensor) -> list[list[int]]:
    """The rows of bools [k, n] in parts that have no column in common."""
    reach, parts = reach.double(), []
    meets = (reach @ reach.T > 0).tolist()
    left = set(range(len(meets)))
    while left:
        part, new = set(), {min(left)}
        while new:
            part |= new
            new = {j for i in new for j in left - part if meets[i][j]}
        left -= part
        parts.append(sorted(part))
    return parts


class _Way:
    """The float64 run with some codes that are others."""

    def __init__(self, others: Sequence[_Other]) -> None:
        self._others = others
        self.codes: list[torch.Tensor] = []
        """All that the run rounded to few values, in order."""
        self.is_deep = False
        """What is rounded hangs on those codes."""

    def outputs(self, kept: Kept, given: Given) -> dict[str, torch.Tensor] | None:
        try:
            rerun = kept.again(run_following(Replay(given, self._follow())))
            named = kept.block.outputs(rerun.result, rerun.twin)
        except (GivenError, RuntimeError, IndexError):
            return None
        exact = kept.reruns.oracle or {}
        found = {name: t for name, (t, _) in named.items()}
        shapes = {name: o.shape for name, (o, _) in exact.items()}
        return found if {name: t.shape for name, t in found.items()} == shapes else None

    def _follow(self) -> Follow:
        decide = deciding(self._other)

        def follow(choice: Choice, operands: tuple[Any, Any]) -> tuple[torch.Tensor, ...]:
            result = decide(choice, operands)
            if choice.quantised:
                self.codes.append(result[0].to(choice.held[0].dtype))
                self.is_deep = self.is_deep or _rounds_others(choice, operands[0][0], result[0])
            return result

        return follow

    def _other(self, choice: Choice) -> torch.Tensor:
        held = choice.held[0]
        mine = [other for other in self._others if other.choice is choice]
        if not mine:
            return held
        changed = held.double().flatten()
        for other in mine:
            changed[other.at] = other.value
        return changed.view(held.shape).to(held.dtype)


def _rounds_others(choice: Choice, x: torch.Tensor, codes: torch.Tensor) -> bool:
    """Whether values are rounded that are not the float64 run's."""
    if choice.operands is None or x.shape != choice.operands[0][0].shape:
        return True
    moved = x.double() != choice.operands[0][0].double()
    return bool((moved & (codes.double() != x.double())).any())
