"""Two tests of whether a difference can be chance, without assumptions about distributions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist

_EXACT_PAIRS = 1000  # above it the normal approximation is within a percent of p


def sign_test(worse: int, changed: int) -> float:
    """Chance of at least `worse` of `changed` fair coins: the one-sided sign test."""
    ways = math.comb(changed, worse) if worse <= changed else 0
    total = 0
    for heads in range(worse, changed + 1):
        total += ways
        ways = ways * (changed - heads) // (heads + 1)
    return float(total / 2**changed)


def mann_whitney(low: Sequence[float], high: Sequence[float]) -> float:
    """Chance that `high` ranks this far above `low` when both have one distribution.

    One-sided, with mid-ranks for ties: exact for small samples, else the normal approximation with
    correction for ties and continuity. NaN ranks above everything.
    """
    ranks = _doubled_ranks([*low, *high])
    observed = sum(ranks[len(low) :])
    if len(low) * len(high) <= _EXACT_PAIRS:
        return _exact(ranks, len(high), observed)
    return _approximate(ranks, len(low), len(high), observed)


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the mid-rank of every value, an integer."""
    keys = [(math.isnan(value), 0.0 if math.isnan(value) else value) for value in values]
    counts = Counter(keys)
    rank_of, below = {}, 0
    for key in sorted(counts):
        rank_of[key] = 2 * below + counts[key] + 1
        below += counts[key]
    return [rank_of[key] for key in keys]


def _exact(ranks: list[int], chosen: int, observed: int) -> float:
    """Share of the choices of `chosen` ranks whose sum is at least the observed one."""
    sums: list[Counter[int]] = [Counter({0: 1})] + [Counter() for _ in range(chosen)]
    for rank in ranks:
        for size in range(chosen, 0, -1):
            for total, ways in sums[size - 1].items():
                sums[size][total + rank] += ways
    as_far = sum(ways for total, ways in sums[chosen].items() if total >= observed)
    return as_far / math.comb(len(ranks), chosen)


def _approximate(ranks: list[int], low: int, high: int, observed: int) -> float:
    n = low + high
    ties = sum(count**3 - count for count in Counter(ranks).values())
    variance = low * high / 12 * (n + 1 - ties / (n * (n - 1)))
    if variance == 0:
        return 1.0
    excess = observed / 2 - high * (n + 1) / 2 - 0.5
    return 1 - NormalDist().cdf(excess / math.sqrt(variance))
