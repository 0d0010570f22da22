"""Why a planted bug may pass: what it does in exact arithmetic, compared with correct kernels.

A bug that gives the same function (a shift before a softmax) is none. One whose effect in float64
is smaller, in every gate, than what correct kernels differ from the oracle by on average, with no
more bits than theirs, is below the resolution of the dtype: no judge that passes them can see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import torch

from ..format.recording import as_number
from .bugs import Bug
from .gates import Gates
from .planting import Rounded, with_bug
from .replay import Again, Runner
from .simulation import NARROW, Normals, Simulation
from .spread import Outputs

SAME = 1e-12
"""Of the largest |o|: two float64 derivations of one function agree to that."""


class Fate(Enum):
    KILLED = "killed"
    SAME_FUNCTION = "same function"
    BELOW_RESOLUTION = "below resolution"
    SURVIVES = "survives"


def fate_of(
    bug: Bug,
    again: Again,
    outputs: Outputs,
    gates: Mapping[str, Gates],
    lifted: Runner,
    rounded: Rounded,
    seed: str,
) -> Fate:
    """Of a bug whose margin is at most 1; `lifted` and `rounded` make their own choices."""
    right = with_bug(again, outputs, lifted, None)
    wrong = with_bug(again, outputs, lifted, bug)
    if right is None or wrong is None or right.keys() != wrong.keys():
        return Fate.SURVIVES
    pairs = [(right[name][0], wrong[name][0]) for name in right]
    if any(a.shape != b.shape for a, b in pairs):
        return Fate.SURVIVES
    if all(same_function(a, b) for a, b in pairs):
        return Fate.SAME_FUNCTION
    if any(not a.is_floating_point() and not torch.equal(a, b) for a, b in pairs):
        return Fate.SURVIVES
    effect = {name: wrong[name][0] - right[name][0] for name in gates}
    if not all(_within(gates[name], effect[name]) for name in gates):
        return Fate.SURVIVES
    if not _few_bits(bug, again, outputs, gates, rounded, seed):
        return Fate.SURVIVES
    return Fate.BELOW_RESOLUTION


def same_function(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two float64 runs of what may be one function agree."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    known = a.isfinite() & b.isfinite()
    if not torch.equal(a.isfinite(), b.isfinite()) or not bool(known.any()):
        return torch.equal(a.isfinite(), b.isfinite())
    off = (a - b)[known].abs().max()
    return float(off) <= SAME * float(a[known].abs().max())


def _within(gates: Gates, effect: torch.Tensor) -> bool:
    """No statistic of o + effect is larger than the mean of correct kernels."""
    figures = gates.scales.statistics((gates.oracle() + effect)[None])
    return all(
        float(value.abs()[0]) <= as_number(gates.spread[name][0])
        for name, value in figures.items()
        if name in gates.spread
    )


def _few_bits(
    bug: Bug,
    again: Again,
    outputs: Outputs,
    gates: Mapping[str, Gates],
    rounded: Rounded,
    seed: str,
) -> bool:
    """No more bits of a 16-bit output change than correct kernels turn over."""
    narrow = {name: g for name, g in gates.items() if g.r.dtype in NARROW}
    if not narrow:
        return True
    found = with_bug(again, outputs, rounded(Simulation(0, Normals(seed))), bug)
    if found is None:
        return False
    return all(
        g.differing(found[name][0], g.m) <= as_number(g.bits()[2]) for name, g in narrow.items()
    )
