"""The limits that the harness has for a call without a native block, and what is beyond them.

The same rules and constants as harness/judge (limits.cpp, spread_limit.cpp, conformance.cpp,
limit_basis.cpp), for outputs that are judged from a recording alone: floors of one rounding, the
reference's own error, simulated kernels. A test holds both to each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..format.recording import as_number
from .following import Family
from .gate_statistics import Scales
from .group_gains import Columns, GainScales

NARROW = (torch.float16, torch.bfloat16)
UNITS = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Unit roundoff u by dtype."""

ROUNDING = 0.43
KAPPA_WIDENING = 3.0
GAIN_OF_REFERENCE = 4.0
GAIN_SMALLEST, GAIN_ROWS, GAIN_FLOAT32, GAIN_ROUNDINGS, GAIN_LEAST = 0.25, 2.0, 2.0, 2.0, 64
DEVIATIONS = 10.0
FAR_BEYOND_FLOOR = 8.0
NO_LESS_ACCURATE = 1.5

SAMPLE = 1 << 14
"""Elements that are looked at first."""
CERTAIN = 1e9
"""The margin of what no rounding explains: NaN where the reference has a number, another choice."""


def spread_limit(figures: list[Any], dtype: torch.dtype) -> float:
    """Of mean, standard deviation and largest over simulated kernels."""
    mean, deviation = as_number(figures[0]), as_number(figures[1])
    c = _c(dtype)
    return max(c * math.hypot(mean, deviation), mean + DEVIATIONS * deviation)


def kappa(sizes: torch.Tensor | float, groups: int) -> torch.Tensor:
    """The small-sample widening of groups of these sizes."""
    n = torch.as_tensor(sizes, dtype=torch.float64).clamp_min(1)
    return 1 + KAPPA_WIDENING / (n * (1 + 2 * math.log(max(groups, 1)))).sqrt()


def wider(figures: list[Any], others: list[Any] | None) -> list[Any]:
    """Those with the larger mean: how another program's sums accumulate is not known."""
    return others if others and as_number(others[0]) > as_number(figures[0]) else figures


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
    columns: Columns

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
    truncated: Mapping[str, Any] | None = None
    family: Family | None = None
    """Of a 16-bit output: the ways to round that its bits may follow."""
    _gains: GainScales = field(init=False)
    _reference: _Errors = field(init=False)
    _uniform: dict[str, bool] = field(init=False)
    _some: tuple[torch.Tensor, torch.Tensor, int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        s = self.scales
        self._elements = int(s.usable.sum())
        self._rows = int(s.usable.any(1).sum())
        known = s.o[s.usable]
        self._constant = bool((known == known[0]).all()) if known.numel() else True
        self._families = [f for f in s.families() if bool((s.group_sizes(f) > 0).any())]
        self._uniform = {f: _uniform(s.group_sizes(f)) for f in self._families}
        dtype = self.r.dtype
        self._gains = GainScales(s, UNITS[dtype], ROUNDING * UNITS[dtype], _c(dtype))
        self._reference = self._errors(self.r[None])
        self._reference = self._trusted()

    def margin(self, y: torch.Tensor) -> float:
        """The largest statistic / limit over the gates; at most 1 passes."""
        ratios = self.ratios(y).values()
        return CERTAIN if any(map(math.isnan, ratios)) else min(max(ratios), CERTAIN)

    def at_least(self, y: torch.Tensor) -> float:
        """A part of margin() that costs little: some elements against the loosest limit that they
        can have. Above 1 the margin is above 1, too."""
        if self._some is None:
            self._some = self._sample()
        o, allowed, step = self._some
        some = self.scales.layout.arranged(y).reshape(-1)[::step]
        ratio = float(((some.double() - o).abs() / allowed).amax()) if len(o) else 0.0
        return min(ratio, CERTAIN) if ratio == ratio else 0.0

    def _sample(self) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Of some elements, in every column, the oracle and the largest error that any way to round
        may have there."""
        reference = self._reference
        for way in [] if self.family is None else self.family.ways:
            reference = _higher(reference, self._errors(way.values[None]))
        far = self._errors((2 * self.oracle())[None])
        ratio = float(self._against(far, reference)["element"][0])
        limit = far.one("plain", "element") / ratio if ratio > 0 else math.inf
        step = max(1, self.scales.o.numel() // SAMPLE) | 1
        usable = self.scales.usable.reshape(-1)[::step]
        allowed = (self.scales.element * limit).reshape(-1)[::step]
        allowed = torch.where(usable & (allowed > 0), allowed, torch.inf)
        return self.scales.known.reshape(-1)[::step], allowed, step

    def ratios(self, y: torch.Tensor) -> dict[str, float]:
        """Statistic / limit of each gate; NaN and Inf for what no rounding explains."""
        if self._other_classes(y):
            return {"classes": math.inf}
        reference, conformance = self._reference, None
        if self.family is not None:
            conformance, peers = self.family.follow(y)
            for peer in peers:
                reference = _higher(reference, self._errors(peer[None]))
        errors = self._errors(y[None])
        ratios = self._against(errors, reference) | self._gain_ratios(errors, reference)
        out = {name: float(ratio) for name, ratio in ratios.items()}
        return out if conformance is None else out | {"conformance": conformance}

    def tensor_no_less_accurate(self, y: torch.Tensor) -> bool:
        """Whether the whole error is at most 1.5 times the reference's, or lies below the floor.
        Not its worst groups: those of two ways to round are draws."""
        allowed = max(self._reference.one("plain", "tensor"), ROUNDING * UNITS[self.r.dtype])
        return self._errors(y[None]).one("plain", "tensor") <= NO_LESS_ACCURATE * allowed

    def valid_rows(self) -> torch.Tensor:
        """Bool [rows, columns]."""
        if self.valid is None:
            return torch.ones_like(self.scales.usable)
        return self.scales.layout.matrix(self.valid.expand(self.r.shape)) != 0

    def bits(self) -> list[Any]:
        """Of simulated kernels that round as the reference does."""
        return wider(self.spread["bits"], (self.truncated or {}).get("bits"))

    def parts(self) -> tuple[list[Any], list[Any]]:
        """Of simulated kernels: how far one of those bits is off, how many are in one channel."""
        far, crowd = (
            wider(self.spread[name], (self.truncated or {}).get(name))
            for name in ("ulp", "channel bits")
        )
        return far, crowd

    def differing(self, y: torch.Tensor, model: torch.Tensor) -> float:
        return float(self.scales.differing(y[None], model[None])[0])

    def _other_classes(self, y: torch.Tensor) -> bool:
        """A number where the reference has none, or the other way round."""
        r, rounded = self.r, self.oracle().to(self.r.dtype)
        alike = (y.isfinite() & r.isfinite()) | (y == r) | (y.isnan() & r.isnan())
        alike |= ~y.isnan() & ((y == rounded) | (y.isfinite() & rounded.isfinite()))
        if self.valid is not None:
            # What is not judged may be infinite as others are: a choice among what is masked.
            known = y.isfinite() | (y.isinf() & torch.isin(y, r))
            alike |= ~self.valid.expand(r.shape) & known
        return not bool(alike.all())

    def oracle(self) -> torch.Tensor:
        """o in the shape of the output."""
        return self.scales.layout.restored(self.scales.o, self.r.shape)

    def _errors(self, y: torch.Tensor) -> _Errors:
        finite = torch.where(y.isfinite(), y.double(), self.oracle().expand(y.shape))
        figures = self.scales.statistics(finite)
        groups = self.scales.group_errors(finite)
        out = _Errors(
            {k: figures[k].abs() for k in ("tensor", "element", "gain")},
            {},
            {},
            {},
            {},
            self._gains.columns(finite),
        )
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
            trusted = self._errors(self.oracle()[None])
        ratios = self._against(self._reference, trusted)
        far = any(float(ratio[0]) > FAR_BEYOND_FLOOR for ratio in ratios.values())
        if far:
            return trusted
        if self.r.dtype in NARROW:
            columns = self._reference.columns.or_larger(trusted.columns)
            return replace(self._reference, columns=columns)
        return self._reference

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

    def _gain_ratios(self, y: _Errors, reference: _Errors) -> dict[str, torch.Tensor]:
        """Of channels and heads. What simulated kernels are off by counts, too: the reference is
        one of many."""
        error = max(reference.one("plain", "tensor"), ROUNDING * UNITS[self.r.dtype])
        if "tensor" in self.spread:
            figures = wider(self.spread["tensor"], (self.truncated or {}).get("tensor"))
            error = max(error, math.hypot(as_number(figures[0]), as_number(figures[1])))
        return self._gains.ratios(y.columns, reference.columns, error)

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
            figures = wider(self.spread[name], (self.truncated or {}).get(name))
            limit = limit.clamp_min(spread_limit(figures, self.r.dtype))
        return torch.where(statistic == 0, 0.0, statistic / limit)


def _uniform(sizes: torch.Tensor) -> bool:
    counted = sizes[sizes > 0]
    return bool((counted == counted[0]).all())


def _higher(a: _Errors, b: _Errors) -> _Errors:
    """The larger of each: roundings at other points are other draws."""

    def larger(x: dict[str, torch.Tensor], y: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: torch.maximum(value, y[name]) for name, value in x.items()}

    return _Errors(
        larger(a.plain, b.plain),
        larger(a.worst, b.worst),
        larger(a.normalised, b.normalised),
        a.value,
        a.kappas,
        a.columns.or_larger(b.columns),
    )
