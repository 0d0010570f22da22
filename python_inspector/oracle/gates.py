"""The limits that the harness has for a call without a native block, and what is beyond them.

The same rules and constants as harness/judge (limits.cpp, spread_limit.cpp, conformance.cpp,
limit_basis.cpp), for outputs that are judged from a recording alone: floors of one rounding, the
reference's own error, simulated kernels. A test holds both to each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from python_inspector.format.recording import as_number
from python_inspector.oracle.gate_statistics import Scales

NARROW = (torch.float16, torch.bfloat16)
UNITS = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Unit roundoff u by dtype."""

ROUNDING = 0.43
KAPPA_WIDENING = 3.0
GAIN_OF_REFERENCE = 4.0
GAIN_SMALLEST, GAIN_ROWS, GAIN_FLOAT32, GAIN_ROUNDINGS, GAIN_LEAST = 0.25, 2.0, 2.0, 2.0, 64
BITS_BASE, BITS_COUNT, BITS_SIGMAS, BITS_LEAST = 0.003, 8, 3.0, 64
BITS_OF_LARGEST = 3.0
BITS_NOISE, BITS_UNDETERMINED = 8.0, 32.0
DEVIATIONS = 10.0
SPREAD_WORTH = 128.0
FAR_BEYOND_FLOOR = 8.0
NO_LESS_ACCURATE = 1.5

CERTAIN = 1e9
"""The margin of what no rounding explains: NaN where the reference has a number, another choice."""


def spread_limit(figures: list[Any], dtype: torch.dtype) -> float:
    """Of mean, standard deviation and largest over simulated kernels."""
    mean, deviation = as_number(figures[0]), as_number(figures[1])
    c = _c(dtype)
    return max(c * math.hypot(mean, deviation), mean + DEVIATIONS * deviation)


def bits_limit(figures: list[Any]) -> float:
    mean, deviation, largest = (as_number(figure) for figure in figures)
    if largest == 0:
        return 0.0
    return max(BITS_OF_LARGEST * largest + BITS_COUNT, mean + DEVIATIONS * deviation)


def kappa(sizes: torch.Tensor | float, groups: int) -> torch.Tensor:
    """The small-sample widening of groups of these sizes."""
    n = torch.as_tensor(sizes, dtype=torch.float64).clamp_min(1)
    return 1 + KAPPA_WIDENING / (n * (1 + 2 * math.log(max(groups, 1)))).sqrt()


def _c(dtype: torch.dtype) -> float:
    return 2.0 if dtype in NARROW else 4.0


@dataclass
class _Errors:
    """The statistics of some outputs [k], as limits use them."""

    plain: dict[str, torch.Tensor]
    """tensor, element and gain."""
    worst: dict[str, torch.Tensor]
    """Of each family the largest v_g."""
    normalised: dict[str, torch.Tensor]
    """Of each family the largest v_g / kappa_g, and of the group where that is:"""
    value: dict[str, torch.Tensor]
    kappas: dict[str, torch.Tensor]

    def one(self, figures: str, name: str) -> float:
        return float(getattr(self, figures)[name][0])


@dataclass
class Gates:
    """How far outputs of one call are beyond the limits of one of its outputs.

    `r` is the reference, `m` its rounded model, `scales` those of o = r + delta; `spread` is the
    entry that the recording has.
    """

    scales: Scales
    r: torch.Tensor
    m: torch.Tensor
    spread: Mapping[str, Any]
    valid: torch.Tensor | None = None
    _reference: _Errors = field(init=False)
    _uniform: dict[str, bool] = field(init=False)

    def __post_init__(self) -> None:
        s = self.scales
        self._elements = int(s.usable.sum())
        self._rows = int(s.usable.any(1).sum())
        known = s.o[s.usable]
        self._constant = bool((known == known[0]).all()) if known.numel() else True
        self._families = [f for f in s.families() if bool((s.group_sizes(f) > 0).any())]
        self._uniform = {f: _uniform(s.group_sizes(f)) for f in self._families}
        self._reference = self._errors(self.r[None])
        self._reference = self._trusted()

    def margins(self, y: torch.Tensor) -> torch.Tensor:
        """[k]: the largest statistic / limit over the gates; at most 1 passes."""
        largest = torch.stack(list(self.ratios(y).values())).amax(0)
        return largest.nan_to_num(CERTAIN, posinf=CERTAIN).clamp_max(CERTAIN)

    def ratios(self, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """Statistic / limit of each gate, [k] each, NaN and Inf for what nothing explains."""
        out = {"classes": torch.where(self._other_classes(y), math.inf, 0.0).double()}
        clean = torch.where(y.isfinite(), y.double(), _spread_over(self.r.double(), y))
        out |= self._against(self._errors(clean), self._reference)
        if y.dtype in NARROW and self._elements >= BITS_LEAST:
            limit = self._bits_limit()
            if limit is not None:
                out["conformance"] = self.differing(y) / limit
        return out

    def no_less_accurate(self, y: torch.Tensor) -> torch.Tensor:
        """[k]: whether errors are at most 1.5 times the reference's, or the floors."""
        found, reference, u = self._errors(y), self._reference, UNITS[self.r.dtype]
        rows = []
        for name, floor in (("tensor", ROUNDING * u), ("element", u)):
            allowed = max(reference.one("plain", name), floor)
            rows.append(found.plain[name] <= NO_LESS_ACCURATE * allowed)
        for family in self._families:
            allowed = max(reference.one("worst", family), ROUNDING * u)
            rows.append(found.worst[family] <= NO_LESS_ACCURATE * allowed)
        return torch.stack(rows).all(0)

    def differing(self, y: torch.Tensor, m: torch.Tensor | None = None) -> torch.Tensor:
        """[k]: elements that are not m's, but for the last place of what cancellation left."""
        s, u = self.scales, UNITS[self.r.dtype]
        model = s.layout.matrix(self.m if m is None else m)
        values = s.layout.matrix(y)
        same = (values == model) | (values.isnan() & model.isnan())
        valid = torch.ones_like(s.usable) if self.valid is None else self._valid()
        sizes = model[valid & model.isfinite()].abs().sort().values
        noise = BITS_NOISE * 2.0**-24 * float(sizes[len(sizes) // 2]) if len(sizes) else 0.0
        ulp = 2 * u * model.abs()
        near = (ulp <= BITS_UNDETERMINED * noise) & ((values - model).abs() <= ulp + noise)
        return (~same & ~near & valid).sum((-2, -1)).double()

    def _valid(self) -> torch.Tensor:
        assert self.valid is not None
        return self.scales.layout.matrix(self.valid.expand(self.r.shape)) != 0

    def _bits_limit(self) -> float | None:
        """None where the reference itself has other bits than its model: nobody's are demanded."""
        n = self._elements if self.valid is None else int(self._valid().sum())
        expected = n * BITS_BASE
        limit = max(BITS_COUNT, expected + BITS_SIGMAS * math.sqrt(expected))
        limit = max(limit, bits_limit(self.spread["bits"]))
        return None if float(self.differing(self.r[None])[0]) > limit else limit

    def _other_classes(self, y: torch.Tensor) -> torch.Tensor:
        """[k]: a number where the reference has none, or the other way round."""
        r = _spread_over(self.r, y)
        alike = (y.isfinite() & r.isfinite()) | (y == r) | (y.isnan() & r.isnan())
        rounded = _spread_over(self._oracle().to(self.r.dtype), y)
        alike |= ~y.isnan() & ((y == rounded) | (y.isfinite() & rounded.isfinite()))
        if self.valid is not None:
            alike |= ~_spread_over(self.valid.expand(self.r.shape), y) & y.isfinite()
        return ~alike.flatten(1).all(1)

    def _oracle(self) -> torch.Tensor:
        """o in the shape of the output."""
        layout = self.scales.layout
        moved = [self.r.shape[axis] for axis in layout.order]
        back = [layout.order.index(axis) for axis in range(len(layout.order))]
        return self.scales.o.reshape(moved).permute(back)

    def _errors(self, y: torch.Tensor) -> _Errors:
        finite = torch.where(y.isfinite(), y.double(), _spread_over(self._oracle(), y))
        figures = self.scales.statistics(finite)
        groups = self.scales.group_errors(finite)
        out = _Errors({k: figures[k].abs() for k in ("tensor", "element", "gain")}, {}, {}, {}, {})
        for family in self._families:
            sizes = self.scales.group_sizes(family)
            kappas = kappa(sizes, int((sizes > 0).sum()))
            errors = groups[family]
            at = (errors / kappas).masked_fill(sizes == 0, -1.0).argmax(1)
            out.worst[family] = errors.amax(1)
            out.value[family] = errors.gather(1, at[:, None])[:, 0]
            out.kappas[family] = kappas[at]
            out.normalised[family] = out.value[family] / out.kappas[family]
        return out

    def _trusted(self) -> _Errors:
        """The reference's errors, unless they are beyond what a right one can have: then those of
        its model, or none."""
        if self.r.dtype in NARROW:
            trusted = self._errors(self.m[None])
        else:
            trusted = self._errors(self._oracle()[None])
        ratios = self._against(self._reference, trusted)
        far = any(float(ratio[0]) > FAR_BEYOND_FLOOR for ratio in ratios.values())
        return trusted if far else self._reference

    def _against(self, y: _Errors, reference: _Errors) -> dict[str, torch.Tensor]:
        dtype, u = self.r.dtype, UNITS[self.r.dtype]
        c, floor = _c(dtype), ROUNDING * u
        of_tensor = max(reference.one("plain", "tensor"), floor)
        limits = {"tensor": c * float(kappa(self._elements, 1)) * of_tensor}
        statistics = dict(y.plain)
        out = {}
        for family in self._families:
            own = "worst" if self._uniform[family] else "normalised"
            statistics[family] = y.worst[family] if own == "worst" else y.value[family]
            allowed = c * y.kappas[family] * max(reference.one(own, family), floor)
            out[family] = self._ratio(family, statistics[family], allowed)
        of_element = max(reference.one("plain", "element"), u)
        limits["element"] = c * float(kappa(1, self._elements)) * of_element
        if not self._constant:
            limits["gain"] = self._gain_limit(reference, of_tensor)
        for name, limit in limits.items():
            out[name] = self._ratio(name, statistics[name], torch.tensor(limit))
        return out

    def _gain_limit(self, reference: _Errors, of_tensor: float) -> float:
        dtype = self.r.dtype
        narrow = dtype in NARROW
        if self._elements < GAIN_LEAST:
            k = _c(dtype) * float(kappa(self._elements, 1))
        else:
            k = max(GAIN_SMALLEST, GAIN_ROWS / math.sqrt(self._rows)) if narrow else GAIN_FLOAT32
        constants = 0.0 if narrow else GAIN_ROUNDINGS * UNITS[dtype]
        return max(GAIN_OF_REFERENCE * reference.one("plain", "gain"), k * of_tensor, constants)

    def _ratio(self, name: str, statistic: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
        if name in self.spread:
            limit = limit.clamp_min(spread_limit(self.spread[name], self.r.dtype))
        return torch.where(statistic == 0, 0.0, statistic / limit)


def _uniform(sizes: torch.Tensor) -> bool:
    counted = sizes[sizes > 0]
    return bool((counted == counted[0]).all())


def _spread_over(one: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return one.expand(y.shape)
