"""How far outputs of a call without a native block are beyond the limits of one of its outputs.

The code here adds up figures, on whichever device the tensors are. The limits that they are held
to, and all rules and constants, are harness/judge's, through its library (native.py).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import native
from ..format.host_copy import is_host
from ..format.recording import as_number, plain
from .following import FEW, ONCE, SMALL, Beside, Way, alike_inputs
from .gate_statistics import Layout, Scales, counted_sizes, group_sums
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
_OF_NO_WAY = (
    "_error_of_r", "_valid_rows", "_families", "_alike", "_gains", "is_all_numbers",
)  # fmt: skip
"""What Gates keep that is the same for all ways to round."""
_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class _Family:
    """The groups of a family that count: how many, whether those have one size, and the widening of
    each; one number where they have."""

    count: int
    alike: bool
    kappas: torch.Tensor

    @classmethod
    def of(cls, library: native.JudgeLibrary, sizes: torch.Tensor) -> _Family:
        counted = sizes[sizes > 0]
        alike = bool((counted == counted[:1]).all())
        kappas = library.kappas(sizes.cpu()).to(sizes.device)
        return cls(len(counted), alike, kappas[sizes > 0][:1] if alike else kappas)


@functools.lru_cache(maxsize=64)
def _family_of(
    library: native.JudgeLibrary, name: str, layout: Layout, device: torch.device
) -> _Family:
    """Of an output where every element is usable."""
    return _Family.of(library, counted_sizes(name, layout, device)[0])


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

    def with_members(self, members: Sequence[Way]) -> Gates:
        """The same, with other ways to round; what does not hang on those is not made again."""
        new = replace(self, members=members)
        vars(new).update({name: vars(self)[name] for name in _OF_NO_WAY if name in vars(self)})
        return new

    def margin(self, y: torch.Tensor) -> float:
        """The largest statistic / limit over the gates; at most 1 passes."""
        return min(self._judged(y)["margin"], CERTAIN)

    def margins(self, outputs: Sequence[torch.Tensor]) -> list[float]:
        """Those of several outputs; of small ones at once."""
        records = self._records(outputs)
        return [min(self._limits.judge(it)["margin"], CERTAIN) for it in records]

    def ratios(self, y: torch.Tensor) -> dict[str, float]:
        """Statistic / limit of each gate; Inf for what no rounding explains."""
        row = self._judged(y)
        return {k: v for k, v in row.items() if v == v and k != "margin"}

    def tensor_no_less_accurate(self, y: torch.Tensor) -> bool:
        """Whether the whole error is at most 1.5 times the reference's, or is below the floor.
        Not its worst groups: those of two ways to round are draws."""
        errors = (self._tensor_error(y), self._error_of_r)
        return native.judge_library().no_less_accurate(*errors, _NAMES[self.r.dtype])

    def at_least(self, outputs: Sequence[torch.Tensor]) -> list[float]:
        """A part of margins() that costs little: some elements against the loosest limit that they
        can have. Above 1 the margin is above 1, too."""
        o, allowed, step = self._sample
        if not len(o):
            return [0.0] * len(outputs)
        values = outputs[0][None] if len(outputs) == 1 else torch.stack(list(outputs))
        some = self.scales.layout.arranged(values).flatten(1)[:, ::step]
        ratios: list[float] = ((some.double() - o).abs() / allowed).amax(-1).tolist()
        return [min(ratio, CERTAIN) if ratio == ratio else 0.0 for ratio in ratios]

    def allowed(self, at: torch.Tensor) -> torch.Tensor:
        """How far elements may be off at some flat positions, by any way to round."""
        layout, limit = self.scales.layout, NEARLY * self._limits.element
        return layout.restored(self.scales.element, self.r.shape).flatten()[at] * limit

    def differing(self, y: torch.Tensor, model: torch.Tensor) -> float:
        return float(self.scales.differing(y[None], model[None])[0])

    @functools.cached_property
    def margin_of_r(self) -> float:
        """Of the reference itself."""
        return min(self._limits.judge(self._known[0])["margin"], CERTAIN)

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
        if "_known" in vars(self):
            record = self._record(y, places=True)
        else:  # small ones are measured at once
            record, *others = self._records([y, *self._measured], places=True)
            vars(self)["_known"] = torch.stack(others)
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

    @property
    def _valid_count(self) -> int:
        return self.r.numel() if self.valid is None else int(self._valid_rows.sum())

    @functools.cached_property
    def _ways(self) -> list[Way]:
        if self.r.dtype not in NARROW:
            return []
        ways = [Way("rounds as the recorded run does", self.m, None), *self.members]
        few = self._valid_count < native.judge_library().least_bits
        if not few and all(way.name != ONCE for way in ways):
            ways.append(Way(ONCE, self.oracle().to(self.r.dtype), None))
        return ways

    @functools.cached_property
    def _beside(self) -> Beside:
        layout, valid = self.scales.layout, self._valid_rows
        return Beside(layout, valid, [way.values for way in self._ways])

    @functools.cached_property
    def _families(self) -> dict[str, _Family]:
        """Of each family what its groups' sizes say."""
        library, scales = native.judge_library(), self.scales
        if scales.all_usable:
            layout, device = scales.layout, self.r.device
            return {name: _family_of(library, name, layout, device) for name in scales.families()}
        sizes = {name: scales.group_sizes(name) for name in scales.families()}
        return {name: _Family.of(library, it) for name, it in sizes.items()}

    @functools.cached_property
    def _described(self) -> native.Limits:
        """Of which nothing is measured yet."""
        scales, layout = self.scales, self.scales.layout
        words = {
            "dtype": _NAMES[self.r.dtype],
            "axes": layout.axes,
            "shape": layout.shape,
            "n": scales.count,
            "valid": self._valid_count,
            "rows": scales.count_of_rows,
            "constant": scales.is_constant,
            "groups": {name: (it.count, it.alike) for name, it in self._families.items()},
            "spread": self.spread,
            "truncated": self.truncated,
            "operations": self.operations,
            "ways": [[way.name, way.bits] for way in self._ways],
        }
        return native.judge_library().limits(json.dumps(plain(words, "limits")))

    @functools.cached_property
    def _limits(self) -> native.Limits:
        limits = self._described
        alike = self._alike if limits.counts_alike else 0
        values = [torch.tensor([alike], device="cpu"), self._gains]
        if self._ways:
            values.append(self._beside.moves().cpu())
        limits.set(torch.cat([value.double() for value in (*values, self._known.flatten())]))
        return limits

    @functools.cached_property
    def _alike(self) -> int:
        return alike_inputs(self.m, self.inputs)

    @functools.cached_property
    def _gains(self) -> torch.Tensor:
        """What the gains of groups are measured in, one family after the other."""
        values = [torch.empty(0, dtype=torch.float64, device="cpu")]
        for gains in gain_families(self.scales).values():
            values += [gains.size, gains.alike, gains.level, gains.rows]
        return torch.cat([value.cpu().double() for value in values])

    @functools.cached_property
    def _known(self) -> torch.Tensor:
        """The records of the reference, and of each way to round."""
        return torch.stack(self._records(self._measured))

    @property
    def _measured(self) -> list[torch.Tensor]:
        return [self.r, *(way.values for way in self._ways)]

    def _record(self, y: torch.Tensor, *, places: bool = False) -> torch.Tensor:
        """What is measured of an output, on the host, in the order that the judge says; with the
        `places` of what is worst where that is asked for."""
        (wrong,) = self._wrong_classes(y[None])
        if wrong:
            return self._of_wrong_classes(wrong)
        figures = self._figures(self.scales.layout.arranged(y).double()[None], places)
        return self._arranged(figures, 1)[0]

    def _records(
        self, outputs: Sequence[torch.Tensor], *, places: bool = False
    ) -> list[torch.Tensor]:
        """Those of several outputs; `places` of the first one."""
        if not is_host(self.r.device) or len(outputs) * self.r.numel() > SMALL:
            return [self._record(y, places=places and y is outputs[0]) for y in outputs]
        values = torch.stack(list(outputs))
        wrong = self._wrong_classes(values)
        right = [i for i, count in enumerate(wrong) if not count]
        values = values if len(right) == len(wrong) else values[right]
        values = self.scales.layout.arranged(values).double()
        figures = self._figures(values, places and not wrong[0]) if right else {}
        found = iter(self._arranged(figures, len(right)))
        return [self._of_wrong_classes(it) if it else next(found) for it in wrong]

    def _of_wrong_classes(self, count: int) -> torch.Tensor:
        return self._arranged({"wrong": torch.tensor([[count]], device="cpu")}, 1)[0]

    def _arranged(self, figures: Mapping[str, torch.Tensor], count: int) -> torch.Tensor:
        parts = [
            figures[name].double().cpu()
            if name in figures
            else torch.zeros(count, numbers, dtype=torch.float64, device="cpu")
            for name, numbers in self._described.record
        ]
        return torch.cat(parts, 1)

    def _figures(self, values: torch.Tensor, places: bool = False) -> dict[str, torch.Tensor]:
        """Of outputs [k, rows, columns], [k, numbers] each; places of the first one."""
        figures = self._errors(values, places)
        if self._ways:
            figures["bits"] = self._bits(values)
        return figures

    def _errors(self, values: torch.Tensor, places: bool) -> dict[str, torch.Tensor]:
        scales, off = self.scales, self._off(values)
        squares, along = off.square(), (off * scales.known).sum(-2)
        out = {}
        for family in scales.families():
            sums = group_sums(squares, family, scales.layout)
            errors = scales.group_errors(sums, family)
            out[family] = self._worst(family, errors)
            if places:
                out[family][0, 2] = self._worst_at(family, errors[0])
        elements = scales.quotient(off.abs_(), scales.element, "element")
        out |= {
            "tensor": scales.quotient(squares.sum((-2, -1)), scales.whole, "tensor").sqrt(),
            "element": elements.amax((-2, -1)),
            "gain": scales.quotient(along.sum(-1), scales.whole, "tensor"),
        }
        out |= {name: out[name][:, None] for name in ("tensor", "element", "gain")}
        at = torch.full_like(out["element"], -1)
        if places:
            at[0, 0] = int(elements[0].argmax())
        return out | {
            "element at": at,
            "energy": squares.sum(-2),
            "along": along,
        }

    def _off(self, values: torch.Tensor) -> torch.Tensor:
        """How far elements are off that count: what is not finite, and rightly so, is not."""
        counts = self.scales.usable & values.isfinite()
        return torch.where(counts, values - self.scales.o, 0.0)

    def _worst(self, family: str, errors: torch.Tensor) -> torch.Tensor:
        """Of [k, groups] the largest error, that over kappa, the place for where that is, the
        group's own error and kappa there."""
        value, kappas = errors.amax(-1), self._families[family].kappas
        nowhere = torch.full_like(value, -1)
        if not len(kappas):
            return torch.stack([value, value, nowhere, value, torch.ones_like(value)], -1)
        if len(kappas) == 1:
            kappa = kappas.expand_as(value)
            return torch.stack([value, value / kappa, nowhere, value, kappa], -1)
        at = self._shares(family, errors).argmax(-1)
        there, kappa = errors.gather(-1, at[:, None])[:, 0], kappas[at]
        return torch.stack([value, there / kappa, nowhere, there, kappa], -1)

    def _worst_at(self, family: str, errors: torch.Tensor) -> int:
        return int(self._shares(family, errors).argmax())

    def _shares(self, family: str, errors: torch.Tensor) -> torch.Tensor:
        """Errors over kappa, of groups that do not count less than of any other."""
        kappas = self._families[family].kappas
        shares = errors / kappas if len(kappas) > 1 else errors
        return shares.masked_fill(self.scales.group_sizes(family) == 0, -1.0)

    def _bits(self, values: torch.Tensor) -> torch.Tensor:
        """Of outputs [k, rows, columns]: four numbers for each way to round."""
        beside, most = self._beside, values[0].numel() // FEW
        other = beside.other(values)
        counts = other.sum((-2, -1)).tolist()
        rows = []
        for i, of_output in enumerate(counts):
            row: list[float] = []
            for way, differ in enumerate(of_output):
                few, parts = differ <= most, (0.0, 0.0)
                if few and differ:
                    noise = self._described.noise[way]
                    parts = beside.parts(way, values[i], other[i, way], noise)
                row += [differ, float(few), *parts]
            rows.append(row)
        return torch.tensor(rows, dtype=torch.float64, device="cpu")

    def _places_of_bits(self, y: torch.Tensor) -> list[list[int]]:
        """For each way to round where the first element differs, and where one does the most."""
        values = self.scales.layout.arranged(y).double()
        return self._beside.places(values) if self._ways else []

    @functools.cached_property
    def is_all_numbers(self) -> bool:
        """The reference."""
        return bool(self.r.isfinite().all())

    def _wrong_classes(self, outputs: torch.Tensor) -> list[int]:
        """Of each of several the numbers where the reference has none, and the other way round."""
        finite = outputs.isfinite().reshape(len(outputs), -1).all(1).tolist()
        return [
            0 if self.is_all_numbers and numbers else int(self.wrong_class(y).sum())
            for y, numbers in zip(outputs, finite, strict=True)
        ]

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
