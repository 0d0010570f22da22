"""Why an output fails, from figures: the words are the judge's, no element leaves its device but
those by which bugs are recognised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .gates import Gates
from .planting import Shown

OF_BITS = {"conformance", "ulp", "channel bits"}
"""Gates that say nothing of sizes."""
Bug = tuple[str, Shown]
"""How a planted bug is named, and its values."""


def figures(
    gates: Gates, y: torch.Tensor, name: str, labels: Sequence[str] | None
) -> dict[str, Any]:
    """The gates of an output of this name whose axes are called so; see native.Limits.explain."""
    return gates.explainer(y, name, labels)({}, torch.empty(0))


def failure(
    gates: Gates, y: torch.Tensor, name: str, labels: Sequence[str] | None, bugs: Sequence[Bug]
) -> dict[str, Any]:
    """The same, and where it fails why and which of bugs it is."""
    explain = gates.explainer(y, name, labels)
    told = explain({}, torch.empty(0))
    if told["verdict"]["status"] == "pass":
        return told
    found = _Difference(gates, y, told)
    details = {
        "wrong": found.first_of_a_wrong_class(),
        "differ": int(found.beyond.sum()),
        "absolute": found.largest(found.off),
        "relative": found.largest(found.off / found.o.abs()),
        "bugs": [[told_as, *found.places(shown)] for told_as, shown in bugs],
    }
    return explain(details, found.energy_along_axes().cpu())


class _Difference:
    """An output that fails, compared with its oracle, in its own shape."""

    def __init__(self, gates: Gates, y: torch.Tensor, told: Mapping[str, Any]) -> None:
        self._gates, self._y = gates, y
        self._verdict = told["verdict"]
        layout = gates.scales.layout
        self.o = gates.oracle()
        self._scale = layout.restored(gates.scales.element, y.shape)
        self._wrong = gates.wrong_class(y)
        self.off = (y.double() - self.o).abs()
        same = (y == self.o) | (y.isnan() & self.o.isnan())
        self.off = torch.where(same, 0.0, self.off)
        self.beyond = ~same & ~(self.off <= told["element_limit"] * self._scale)

    def first_of_a_wrong_class(self) -> list[float] | None:
        """Its place among rows and columns, its value, and the reference's."""
        layout = self._gates.scales.layout
        wrong = layout.arranged(self._wrong).flatten()
        if not bool(wrong.any()):
            return None
        at = int(wrong.int().argmax())
        values = (layout.arranged(t).flatten()[at].item() for t in (self._y, self._gates.r))
        return [float(at), *map(float, values)]

    def largest(self, off: torch.Tensor) -> list[float] | None:
        """The largest of what is a number, and where it is."""
        known = torch.where(off.isfinite(), off, -1.0).flatten()
        at = int(known.argmax())
        largest = float(known[at])
        return [largest, float(at)] if largest > 0 else None

    def places(self, shown: Shown) -> Iterator[list[float]]:
        """Where a bug is recognised: its value, what came, what is right, and the size of that."""
        at = shown.at
        columns = (shown.values, self._y.flatten()[at], self.o.flatten()[at],
                   self._scale.flatten()[at])  # fmt: skip
        yield from torch.stack([t.double() for t in columns], 1).tolist()

    def energy_along_axes(self) -> torch.Tensor:
        """Of what is no rounding, summed along each axis, one after the other."""
        energy = self._energy()
        if energy.ndim < 2:
            return energy.flatten()
        axes = range(energy.ndim)
        return torch.cat([energy.sum([a for a in axes if a != axis]) for axis in axes])

    def _energy(self) -> torch.Tensor:
        failed = {gate["name"] for gate in self._verdict["gates"] if not gate["passed"]}
        if "classes" in failed:
            return self._wrong.double()
        if failed <= OF_BITS:
            m = self._gates.m
            return ((self._y != m) & ~(self._y.isnan() & m.isnan())).double()
        noise = max(self._verdict["reference_statistics"]["E_T"], self._verdict["floors"]["norm"])
        raw = self.off.square()
        raw = torch.where(raw.isfinite(), raw, 0.0)
        raw = torch.where(self.off.isfinite(), raw, raw.amax().clamp_min(math.ulp(1.0)))
        excess = (raw - (2 * noise * self._scale).square()).clamp_min(0)
        return excess if bool((excess > 0).any()) else raw
