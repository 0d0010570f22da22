"""Elements of outputs that depend on choices which correct kernels may make otherwise, or on rows
of attention without a key.

The float64 run is made again with other choices that are right, so often that each of them is made
once. What a float output has elsewhere then is not judged; of an output of integers every value
that was seen is right, and no other: where an element follows from one choice alone. Where several
feed it, or not all that is right could be gone through, it is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..format.axes import Named
from .choices import decide_otherwise, other_choices, parts_to_decide, touched
from .feeding import Feeding
from .given import Given, GivenError, Replay, selection_axis
from .orders import MOST
from .replay import Again, run_following
from .spread import Outputs

FOR_FLOATS = 3
"""Ways that are gone through where no output is a choice."""


@dataclass
class Open:
    """The open elements of one output."""

    mask: torch.Tensor
    at: torch.Tensor | None = None
    """Of integers: flat positions, ascending, once for each value that is right there."""
    values: torch.Tensor | None = None
    distinct: int | None = None
    """The axis along which no two values may be the same: that of a top-k's indices."""

    def allows(self, y: torch.Tensor, right: torch.Tensor) -> bool:
        """Whether `y` is right but for open elements, and has one of their values there."""
        other = y != right
        if bool((other & ~self.mask).any()):
            return False
        if self.at is None or self.values is None:
            return True
        fits = torch.zeros(y.numel(), dtype=torch.bool, device=y.device)
        fits[self.at[y.flatten()[self.at] == self.values]] = True
        known = torch.zeros_like(fits)
        known[self.at] = True
        return not bool((other.flatten() & known & ~fits).any())


def open_elements(
    outputs: Outputs,
    again: Again,
    oracle: Mapping[str, Named],
    simulated: Mapping[str, torch.Tensor],
    given: Given,
) -> dict[str, Open]:
    """By output; none for one without. `oracle` has the reference's choices."""
    discrete = any(not o.is_floating_point() for o, _ in oracle.values())
    runs = decide_otherwise(given.choices, MOST if discrete else FOR_FLOATS)
    codes = max((len(choice.others) for choice in given.choices if choice.quantised), default=0)
    gone_through = _Through(oracle, simulated)
    parts = parts_to_decide(given.choices)
    ways = [other_choices(turn, only=only) for turn in range(runs) for only in parts]
    plain = len(ways)
    ways += [other_choices(turn, quantised=True) for turn in range(codes)]
    for at, follow in enumerate(ways):
        quantised, feeding = at >= plain, Feeding()
        try:
            other = again(run_following(Replay(given, follow, feeding=feeding)))
            named, leaves = outputs(other.result, other.twin), _leaves(other.result)
        except (GivenError, RuntimeError, IndexError):
            named, leaves = {}, []
        gone_through.add(named, leaves, feeding, quantised=quantised)
    if given.lacks_keys:
        try:
            other = again(run_following(Replay(given, fills=True)))
            gone_through.without_key(outputs(other.result, other.twin))
        except (GivenError, RuntimeError, IndexError):
            gone_through.without_key({})
    return gone_through.found()


class _Through:
    """What runs with other choices gave."""

    def __init__(self, oracle: Mapping[str, Named], simulated: Mapping[str, torch.Tensor]) -> None:
        self._oracle = {name: o for name, (o, _) in oracle.items()}
        self._simulated = simulated
        self._masks = {
            name: torch.zeros_like(o, dtype=torch.bool) for name, o in self._oracle.items()
        }
        self._seen: dict[str, list[torch.Tensor]] = {name: [] for name in oracle}
        self._single = dict.fromkeys(oracle, True)
        self._distinct: dict[str, int | None] = {}

    def add(
        self,
        named: Mapping[str, Named],
        leaves: Sequence[torch.Tensor],
        feeding: Feeding,
        *,
        quantised: bool,
    ) -> None:
        """Values that were `quantised` otherwise count in outputs that are such values; what is
        computed of them simulated kernels have, too."""
        for place, (name, o) in enumerate(self._oracle.items()):
            leaf = leaves[place] if place < len(leaves) else None
            origin = None if leaf is None else feeding.origin(leaf)
            of_8_bits = o.dtype == torch.float32  # read in float32
            is_code = not o.is_floating_point() or of_8_bits
            is_code = is_code or getattr(origin, "quantised", False)
            if quantised and not is_code:
                continue
            if name not in named or named[name][0].shape != o.shape:
                # with other choices the code takes another way: unknown which rows
                self._masks[name].fill_(True)
                self._single[name] = False
                continue
            self._masks[name] |= touched(o, named[name][0], self._simulated.get(name))
            self._seen[name].append(named[name][0])
            if leaf is None or leaf.shape != o.shape or not feeding.is_single(leaf):
                self._single[name] = False
            else:
                self._distinct[name] = _distinct(origin, leaf)

    def without_key(self, named: Mapping[str, Named]) -> None:
        """Of a run whose rows without a key hold something else."""
        for name, o in self._oracle.items():
            known = name in named and named[name][0].shape == o.shape
            reached = torch.ones_like(o, dtype=torch.bool)
            if known:
                reached = touched(o, named[name][0], self._simulated.get(name))
            self._masks[name] |= reached
            self._single[name] = self._single[name] and not bool(reached.any())

    def found(self) -> dict[str, Open]:
        out = {name: Open(mask) for name, mask in self._masks.items() if bool(mask.any())}
        for name, entry in out.items():
            o = self._oracle[name]
            if self._single[name] and not o.is_floating_point():
                entry.at, entry.values = _right(o, self._seen[name], entry.mask)
                entry.distinct = self._distinct.get(name)
        return out


def _right(
    o: torch.Tensor, others: list[torch.Tensor], mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every value that was seen at each open position."""
    at = mask.flatten().nonzero().flatten()
    every = torch.stack([t.flatten()[at].long() for t in (o, *others)]).sort(0).values
    first = torch.ones_like(every, dtype=torch.bool)
    first[1:] = every[1:] != every[:-1]
    return at.expand_as(every).T[first.T], every.T[first.T]


def _distinct(choice: Any, held: torch.Tensor) -> int | None:
    name = "" if choice is None else choice.func._schema.name.partition("::")[2]
    if name not in ("topk", "sort", "argsort") or choice.held[0].shape != held.shape:
        return None
    return selection_axis(choice.func, *choice.operands) % max(1, held.ndim)


def _leaves(result: Any) -> list[torch.Tensor]:
    """The tensors of a result in the order of its outputs."""
    return [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.numel()]
