"""How far outputs of a call without a native block are beyond the limits of one of its outputs.

The code here adds up figures, on whichever device the tensors are. The limits that they are held
to, and all rules and constants, are harness/judge's, through its library (native.py).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import native
from ..format.recording import as_number, plain
from .following import FEW, ONCE, Beside, Way, alike_inputs
from .gate_statistics import Scales, group_sums
from .group_gains import gain_families
from .simulation import NARROW

SAMPLE = 1 << 14
"""Elements that are looked at first."""
Explain = Callable[[Mapping[str, Any], torch.Tensor], dict[str, Any]]
"""From details and energy (harness/trace/explained_output.h) to a verdict in words."""
CERTAIN = 1e9
"""The margin of what no rounding explains: NaN where the reference has a number, another choice."""
NEARLY = 1.01
"""Of a limit that the judge of files may have a little wider, for other sums."""
_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@dataclass
class Gates:
    """How far outputs of one call are beyond the limits of one of its outputs.

    `r` is the reference, `m` its rounded model, `scales` those of o = r + delta; `spread` is the
    entry that the recording has, `operations` are the trace's, `inputs` the call's.
    """

    scales: Scales
    r: torch.Tensor
    m: torch.Tensor
    spread: Mapping[str, Any]
    valid: torch.Tensor | None = None
    truncated: Mapping[str, Any] | None = None
    operations: Sequence[Mapping[str, Any]] = ()
    inputs: Sequence[torch.Tensor] = ()
    members: Sequence[Way] = ()
    """Of a 16-bit output: other ways to round that its bits may follow. Set before it is asked."""

    def margin(self, y: torch.Tensor) -> float:
        """The largest statistic / limit over the gates; at most 1 passes."""
        return min(self._judged(y)["margin"], CERTAIN)

    def ratios(self, y: torch.Tensor) -> dict[str, float]:
        """Statistic / limit of each gate; Inf for what no rounding explains."""
        row = self._judged(y)
        return {k: v for k, v in row.items() if v == v and k != "margin"}

    def tensor_no_less_accurate(self, y: torch.Tensor) -> bool:
        """Whether the whole error is at most 1.5 times the reference's, or is below the floor.
        Not its worst groups: those of two ways to round are draws."""
        errors = (self._tensor_error(y), self._error_of_r)
        return native.judge_library().no_less_accurate(*errors, _NAMES[self.r.dtype])

    def at_least(self, y: torch.Tensor) -> float:
        """A part of margin() that costs little: some elements against the loosest limit that they
        can have. Above 1 the margin is above 1, too."""
        o, allowed, step = self._sample
        some = self.scales.layout.arranged(y).reshape(-1)[::step]
        ratio = float(((some.double() - o).abs() / allowed).amax()) if len(o) else 0.0
        return min(ratio, CERTAIN) if ratio == ratio else 0.0

    def allowed(self, at: torch.Tensor) -> torch.Tensor:
        """How far elements may be off at some flat positions, by any way to round."""
        layout, limit = self.scales.layout, NEARLY * self._limits.element
        return layout.restored(self.scales.element, self.r.shape).flatten()[at] * limit

    def differing(self, y: torch.Tensor, model: torch.Tensor) -> float:
        return float(self.scales.differing(y[None], model[None])[0])

    @functools.cached_property
    def margin_of_r(self) -> float:
        """Of the reference itself."""
        return self.margin(self.r)

    def bits(self) -> Sequence[Any]:
        """Of simulated kernels that round as the reference does, or truncate."""
        narrow = (self.truncated or self.spread)["bits"]
        return max(self.spread["bits"], narrow, key=lambda figures: as_number(figures[0]))

    def oracle(self) -> torch.Tensor:
        """o in the shape of the output."""
        return self.scales.layout.restored(self.scales.o, self.r.shape)

    @functools.cached_property
    def _sample(self) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Of some elements, in every column, the oracle and the largest error that any way to round
        may have there."""
        step = max(1, self.scales.o.numel() // SAMPLE) | 1
        usable = self.scales.usable.reshape(-1)[::step]
        allowed = (self.scales.element * self._limits.element).reshape(-1)[::step]
        allowed = torch.where(usable & (allowed > 0), allowed, torch.inf)
        return self.scales.known.reshape(-1)[::step], allowed, step

    def explainer(self, y: torch.Tensor, name: str, labels: Sequence[str] | None) -> Explain:
        """Asks the judge for words on an output of this name, whose axes are called so."""
        record = self._record(y, places=True)
        known = {
            "name": name,
            "labels": None if labels is None else list(labels),
            "places": self._places_of_bits(y),
        }

        def explain(more: Mapping[str, Any], along: torch.Tensor) -> dict[str, Any]:
            details = json.dumps(plain(known | dict(more), "details"))
            return self._limits.explain(record, details, along)

        return explain

    def _judged(self, y: torch.Tensor) -> dict[str, float]:
        return self._limits.judge(self._record(y))

    def _tensor_error(self, y: torch.Tensor) -> float:
        squares = self._off(self.scales.layout.arranged(y).double()).square()
        return float(self.scales.quotient(squares.sum(), self.scales.whole, "tensor").sqrt())

    @functools.cached_property
    def _error_of_r(self) -> float:
        return self._tensor_error(self.r)

    @functools.cached_property
    def _valid_rows(self) -> torch.Tensor:
        """Bool [rows, columns]."""
        if self.valid is None:
            return torch.ones_like(self.scales.usable)
        return self.scales.layout.matrix(self.valid.expand(self.r.shape)) != 0

    @functools.cached_property
    def _ways(self) -> list[Way]:
        if self.r.dtype not in NARROW:
            return []
        ways = [Way("rounds as the recorded run does", self.m, None), *self.members]
        few = int(self._valid_rows.sum()) < native.judge_library().least_bits
        if not few and all(way.name != ONCE for way in ways):
            ways.append(Way(ONCE, self.oracle().to(self.r.dtype), None))
        return ways

    @functools.cached_property
    def _beside(self) -> list[Beside]:
        layout, valid = self.scales.layout, self._valid_rows
        return [Beside(layout, valid, way.values) for way in self._ways]

    @functools.cached_property
    def _kappas(self) -> dict[str, torch.Tensor]:
        """Of each family the widening of its groups; one number where they have one size."""
        out = {}
        for family in self.scales.families():
            sizes = self.scales.group_sizes(family)
            kappas = native.judge_library().kappas(sizes.cpu()).to(sizes.device)
            out[family] = kappas[sizes > 0][:1] if self._groups[family][1] else kappas
        return out

    @functools.cached_property
    def _groups(self) -> dict[str, tuple[int, bool]]:
        """Of each family how many groups count, and whether those have one size."""
        out = {}
        for family in self.scales.families():
            counted = self.scales.group_sizes(family)
            counted = counted[counted > 0]
            out[family] = len(counted), bool((counted == counted[:1]).all())
        return out

    @functools.cached_property
    def _described(self) -> native.Limits:
        """Of which nothing is measured yet."""
        scales, layout = self.scales, self.scales.layout
        known = scales.o[scales.usable]
        words = {
            "dtype": _NAMES[self.r.dtype],
            "axes": layout.axes,
            "shape": layout.shape,
            "n": len(known),
            "valid": int(self._valid_rows.sum()),
            "rows": int(scales.usable.any(1).sum()),
            "constant": bool((known == known[:1]).all()),
            "groups": self._groups,
            "spread": self.spread,
            "truncated": self.truncated,
            "operations": self.operations,
            "ways": [[way.name, way.bits] for way in self._ways],
        }
        return native.judge_library().limits(json.dumps(plain(words, "limits")))

    @functools.cached_property
    def _limits(self) -> native.Limits:
        limits = self._described
        alike = alike_inputs(self.m, self.inputs) if limits.counts_alike else 0
        values = [torch.tensor([alike], device="cpu")]
        for gains in gain_families(self.scales).values():
            values += [gains.size, gains.alike, gains.level, gains.rows]
        if self._ways:
            first = self._beside[0]
            moves = [first.moves(it) for it in self._beside]
            values.append(torch.tensor(moves, dtype=torch.float64, device="cpu"))
        values += [self._record(y) for y in (self.r, *(way.values for way in self._ways))]
        limits.set(torch.cat([value.cpu().double() for value in values]))
        return limits

    def _record(self, y: torch.Tensor, *, places: bool = False) -> torch.Tensor:
        """What is measured of an output, on the host, in the order that the judge says; with the
        `places` of what is worst where that is asked for."""
        figures: dict[str, Any] = {}
        if wrong := self._wrong_classes(y):
            figures = {"wrong": [wrong]}
        else:
            values = self.scales.layout.arranged(y).double()
            figures = self._errors(values, places) | {"wrong": [0]}
            if self._ways:
                figures["bits"] = self._bits(values)
        parts = [
            torch.as_tensor(figures[name], dtype=torch.float64, device="cpu")
            if name in figures
            else torch.zeros(count, dtype=torch.float64, device="cpu")
            for name, count in self._described.record
        ]
        return torch.cat(parts)

    def _errors(self, values: torch.Tensor, places: bool) -> dict[str, Any]:
        scales, off = self.scales, self._off(values)
        squares, along = off.square(), (off * scales.known).sum(-2)
        errors = {
            family: scales.group_errors(group_sums(squares, family, scales.layout), family)
            for family in scales.families()
        }
        elements = scales.quotient(off.abs_(), scales.element, "element")
        figures = torch.stack(
            [
                scales.quotient(squares.sum(), scales.whole, "tensor").sqrt(),
                elements.amax(),
                scales.quotient(along.sum(), scales.whole, "tensor"),
                *(number for it in errors.items() for number in self._worst(*it)),
            ]
        ).tolist()
        out = {"tensor": figures[:1], "element": figures[1:2], "gain": figures[2:3]}
        for i, family in enumerate(errors):
            value, normalised, there, kappa = figures[3 + 4 * i : 7 + 4 * i]
            at = self._worst_at(family, errors[family]) if places else -1
            out[family] = [value, normalised, at, there, kappa]
        at = int(elements.argmax()) if places else -1
        return out | {"element at": [at], "energy": squares.sum(-2), "along": along}

    def _off(self, values: torch.Tensor) -> torch.Tensor:
        """How far elements are off that count: what is not finite, and rightly so, is not."""
        counts = self.scales.usable & values.isfinite()
        return torch.where(counts, values - self.scales.o, 0.0)

    def _worst(self, family: str, errors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The largest error, that over kappa, and the group's own error and kappa there."""
        value, kappas = errors.amax(), self._kappas[family]
        if not len(kappas):
            return value, value, value, torch.ones_like(value)
        if len(kappas) == 1:
            return value, value / kappas[0], value, kappas[0]
        sizes = self.scales.group_sizes(family)
        at = (errors / kappas).masked_fill(sizes == 0, -1.0).argmax()
        return value, errors[at] / kappas[at], errors[at], kappas[at]

    def _worst_at(self, family: str, errors: torch.Tensor) -> int:
        sizes = self.scales.group_sizes(family)
        kappas = self._kappas[family]
        shares = errors / kappas if len(kappas) > 1 else errors
        return int(shares.masked_fill(sizes == 0, -1.0).argmax())

    def _bits(self, values: torch.Tensor) -> list[float]:
        others = [beside.other(values) for beside in self._beside]
        counts = torch.stack([other.sum() for other in others]).tolist()
        out: list[float] = []
        for i, (beside, other, differ) in enumerate(zip(self._beside, others, counts, strict=True)):
            few = differ <= values.numel() // FEW
            parts = (0.0, 0.0)
            if few and differ:
                parts = beside.parts(values, other, self._described.noise[i])
            out += [differ, float(few), *parts]
        return out

    def _places_of_bits(self, y: torch.Tensor) -> list[list[int]]:
        """For each way to round where the first element differs, and where one does the most."""
        values = self.scales.layout.arranged(y).double()
        return [beside.places(values) for beside in self._beside] if self._ways else []

    @functools.cached_property
    def _is_ordinary(self) -> bool:
        return bool(self.r.isfinite().all())

    def _wrong_classes(self, y: torch.Tensor) -> int:
        """Numbers where the reference has none, and the other way round."""
        if self._is_ordinary and bool(y.isfinite().all()):
            return 0
        return int(self.wrong_class(y).sum())

    def wrong_class(self, y: torch.Tensor) -> torch.Tensor:
        """Where there are such."""
        r, rounded = self.r, self.oracle().to(self.r.dtype)
        alike = (y.isfinite() & r.isfinite()) | (y == r) | (y.isnan() & r.isnan())
        alike |= ~y.isnan() & ((y == rounded) | (y.isfinite() & rounded.isfinite()))
        if self.valid is not None:
            # What is not judged may be infinite as others are: a choice among what is masked.
            known = y.isfinite() | (y.isinf() & torch.isin(y, r))
            alike |= ~self.valid.expand(r.shape) & known
        return ~alike
