"""Which orders of values are right where some of them are within rounding of each other.

Values are in an order, the largest first, each with a tolerance. `Places` says at which places each
of them may be: behind all that are certainly larger, before all that are certainly smaller. turns()
gives other orders, so many that every value is once at every place where it may be, as far as few
turns can.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MOST = 16
"""Turns: more values than that in one tie are not gone through."""


@dataclass
class Places:
    """The first and the last place where each value of an order [..., n] may be."""

    first: torch.Tensor
    last: torch.Tensor

    @classmethod
    def of(cls, values: torch.Tensor, tolerance: torch.Tensor) -> Places:
        n = values.shape[-1]
        low, high = values - tolerance, values + tolerance
        larger = n - torch.searchsorted(low.sort(-1).values, high.contiguous(), right=True)
        smaller = torch.searchsorted(high.sort(-1).values, low.contiguous())
        return cls(larger, n - 1 - smaller)

    def candidates(self, places: int) -> torch.Tensor:
        """How many values may be at each of the first places: [..., places]."""
        at = torch.arange(places, device=self.first.device).expand(*self.first.shape[:-1], places)
        at = at.contiguous()
        come = torch.searchsorted(self.first.sort(-1).values, at, right=True)
        gone = torch.searchsorted(self.last.sort(-1).values, at)
        return come - gone

    def allow(self, source: torch.Tensor) -> torch.Tensor:
        """Whether the value from place `source` may be at each place: [..., n]."""
        at = torch.arange(source.shape[-1], device=source.device)
        return (self.first.gather(-1, source) <= at) & (at <= self.last.gather(-1, source))


@dataclass
class Turns:
    """Other orders of the first places, as indices [..., places] of the values."""

    orders: list[torch.Tensor]
    complete: bool
    """Every value was at each place where it may be."""

    def show(self, own: torch.Tensor, candidates: torch.Tensor) -> bool:
        """Whether these and the own order show so many values at each place."""
        every = torch.stack([own, *self.orders]).sort(0).values
        return bool((1 + (every[1:] != every[:-1]).sum(0) >= candidates).all())


def turns(
    order: torch.Tensor, doubtful: torch.Tensor, places: Places, first: int, most: int = MOST
) -> Turns:
    """`order` are indices [..., n], `doubtful` [..., n - 1] whether neighbours may change places.

    Values that are connected go round; where one would come to a place that is not its own, and
    where that does not show all, neighbours change places.
    """
    candidates = places.candidates(first)
    count = min(most, max(2, int(candidates.max()))) if candidates.numel() else 2
    start, size = _groups(_until(doubtful, first))
    at = torch.arange(order.shape[-1], device=order.device).expand(order.shape)
    sources = []
    for turn in range(1, count):
        source = start + (at - start + turn) % size
        right = places.allow(source).all(-1, keepdim=True)
        sources.append(torch.where(right, source, _exchanged(doubtful, turn % 2)))
    found = Turns([order.gather(-1, source)[..., :first] for source in sources], True)
    found.complete = found.show(order[..., :first], candidates)
    if not found.complete:
        exchanged = [_exchanged(doubtful, parity) for parity in (0, 1)]
        found.orders += [order.gather(-1, source)[..., :first] for source in exchanged]
        found.complete = found.show(order[..., :first], candidates)
    return found


def _until(doubtful: torch.Tensor, first: int) -> torch.Tensor:
    """Without what is connected with none of the first places."""
    ends = torch.cummin((doubtful | _before(doubtful, first - 1)).int(), -1).values
    return doubtful & (ends > 0)


def _before(doubtful: torch.Tensor, place: int) -> torch.Tensor:
    return torch.arange(doubtful.shape[-1], device=doubtful.device) < place


def _groups(doubtful: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each place where the places begin that it is connected with, and how many they are."""
    n = doubtful.shape[-1] + 1
    at = torch.arange(n, device=doubtful.device).expand(*doubtful.shape[:-1], n)
    begins = torch.nn.functional.pad(~doubtful, (1, 0), value=True)
    ends = torch.nn.functional.pad(~doubtful, (0, 1), value=True)
    start = torch.where(begins, at, 0).cummax(-1).values
    end = torch.where(ends, at, n).flip(-1).cummin(-1).values.flip(-1)
    return start, end - start + 1


def _exchanged(doubtful: torch.Tensor, parity: int) -> torch.Tensor:
    """Neighbours at places of this parity have changed places."""
    n = doubtful.shape[-1] + 1
    at = torch.arange(n, device=doubtful.device).expand(*doubtful.shape[:-1], n)
    swap = doubtful & (at[..., :-1] % 2 == parity)
    up = torch.nn.functional.pad(swap, (0, 1)).long()  # takes the value behind it
    down = torch.nn.functional.pad(swap, (1, 0)).long()  # takes the value before it
    return at + up - down
