"""What simulated correct kernels show of a block: its rounded model, and every gate's spread.

simulate() runs a call as rounded.py does and keeps the samples of its outputs; model_of(),
spread_of() and spreads_of() turn those into what a recording says of an output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..format.axes import Named
from ..format.host_copy import is_host
from ..format.sampled import WIDTH, sign_vectors
from . import truncation
from .contracts import Inside
from .fused_statistics import statistics
from .gate_statistics import (
    Figures,
    Layout,
    Scales,
    layout_of,
    sketch_errors,
)
from .given import Given
from .replay import Again, Twin, run_rounded
from .room import stack_elements
from .simulation import NARROW, Normals, Simulation, TooLargeError

_ROOM = 1 << 20
"""Elements of samples whose statistics are made at once, on a host: more leave its caches, and
memory that the system clears first."""
_ROOM_ON_DEVICE = 1 << 30
_NO_ROOM = (TooLargeError, torch.cuda.OutOfMemoryError)
"""Fewer kernels may still fit; the model and others use an accelerator's memory, too."""

Outputs = Callable[[Any, Twin], dict[str, Named]]


@dataclass
class Simulated:
    """The outputs of one call: of each a stack [1 + runs, *shape], the rounded model first."""

    stacks: dict[str, torch.Tensor]
    """With as many kernels whose products truncate behind them, where sums are long enough."""
    operations: list[dict[str, Any]]
    runs: int
    makers: Mapping[str, Sequence[int]]
    """By output the operations that it is made by, by place; none of one where they are not known.
    """
    truncates: bool = False
    spreads: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By output the spread entry of each kind of kernels, where they are known already."""
    ill: dict[str, torch.Tensor] = field(default_factory=dict)
    """By output its ill-conditioned rows, which these entries are without."""
    against: dict[str, Judged] = field(default_factory=dict)
    """By output what they were measured against, where it is there."""

    def places_of(self, output: str) -> Sequence[int]:
        """Of the operations that it is made by; all where that is not known."""
        return self.makers.get(output, range(len(self.operations)))

    def operations_of(self, output: str) -> list[dict[str, Any]]:
        return [self.operations[place] for place in self.places_of(output)]

    def models(self, spreads: Mapping[str, Sequence[Mapping[str, Any]]]) -> Simulated:
        """What is left to know once there are spread entries: the rounded models, which need a
        fraction of the memory."""
        return replace(
            self,
            stacks={name: stack[:1].clone() for name, stack in self.stacks.items()},
            spreads={name: [dict(entry) for entry in kinds] for name, kinds in spreads.items()},
        )

    @property
    def outputs(self) -> dict[str, torch.Tensor]:
        """The stacks of kernels that round."""
        return {name: stack[: 1 + self.runs] for name, stack in self.stacks.items()}

    @property
    def truncated(self) -> dict[str, torch.Tensor]:
        """Those of kernels whose products truncate, none where there are no such."""
        if not self.truncates:
            return {}
        behind = 1 + self.runs
        return {name: torch.cat([s[:1], s[behind:]]) for name, s in self.stacks.items()}


def simulate(
    again: Again,
    outputs: Outputs,
    runs: int,
    seed: str,
    given: Given | None = None,
    inside: Inside | None = None,
) -> Simulated | None:
    """None for a call without arithmetic: every kernel gives the same bits. The choices of the
    reference are followed where they are `given`; else `inside` says how simulated kernels
    depart from float32 arithmetic.

    Raises RoundedRunError where the arithmetic is not seen.
    """
    kind = _DIGITS.sub("#", seed)
    if given is None and kind in _truncate:  # most likely again
        result = _side_by_side(again, outputs, runs, seed, inside)
        if result is not None:
            return result
    how = (given, inside)
    result = _groups(again, outputs, runs, seed, how, truncating=False)
    if not result.operations:
        return None
    if _truncates(result):
        others = _groups(again, outputs, runs, seed, how, truncating=True).stacks
        result.stacks = {n: torch.cat([s, others[n][1:]]) for n, s in result.stacks.items()}
        result.truncates = True
        _truncate.add(kind)
    return result


_DIGITS = re.compile(r"\d+")
_truncate: set[str] = set()
"""Calls that had sums long enough for truncation to count, by their names without numbers."""


def _truncates(simulated: Simulated) -> bool:
    long = any(entry.get("terms", 1) >= truncation.LEAST_TERMS for entry in simulated.operations)
    return long and any(stack.dtype in NARROW for stack in simulated.stacks.values())


def _side_by_side(
    again: Again, outputs: Outputs, runs: int, seed: str, inside: Inside | None
) -> Simulated | None:
    """The kernels that round and those that truncate in one run, with the same bits; None where
    there is no room for that, or no need."""
    simulation = Simulation(runs, Normals(seed), truncating=runs)
    try:
        rerun = again(run_rounded(simulation, None, inside))
    except _NO_ROOM:
        return None
    result = _simulated(simulation, outputs(rerun.result, rerun.twin), runs)
    result.truncates = True
    return result if _truncates(result) else None


def _simulated(simulation: Simulation, named: Mapping[str, Named], runs: int) -> Simulated:
    """What a run gave that is over."""
    stacks = {name: stack_of(simulation, tensor) for name, (tensor, _) in named.items()}
    made = {name: simulation.makers(tensor) for name, (tensor, _) in named.items()}
    makers = {name: places for name, places in made.items() if places is not None}
    return Simulated(stacks, simulation.operations, runs, makers)


def _groups(
    again: Again,
    outputs: Outputs,
    runs: int,
    seed: str,
    how: tuple[Given | None, Inside | None],
    *,
    truncating: bool,
) -> Simulated:
    """As many kernels at once as fit; the first group's rounded model counts."""
    normals, size = Normals(seed), runs
    parts: list[Simulated] = []
    losses: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    done = 0
    while done < runs:
        now = min(size, runs - done)
        simulation = Simulation(
            0 if truncating else now,
            normals,
            truncating=now if truncating else 0,
            plain=not done,
            losses=losses if now < runs else None,
        )
        try:
            rerun = again(run_rounded(simulation, *how))
        except _NO_ROOM:
            if now == 1:
                raise
            size = now // 2
            continue
        parts.append(_simulated(simulation, outputs(rerun.result, rerun.twin), runs))
        done += now
    first, *others = parts
    for name, stack in first.stacks.items():
        first.stacks[name] = torch.cat([stack, *(part.stacks[name][1:] for part in others)])
    return first


def stack_of(simulation: Simulation, t: torch.Tensor) -> torch.Tensor:
    """All samples of an output, the rounded model first."""
    stack = simulation.stacks.of(t)
    return t.expand(simulation.rows, *t.shape) if stack is None else stack.to(t.dtype)


@dataclass
class Judged:
    """One output as the judge sees it: what the samples are measured against."""

    layout: Layout
    scales: Scales
    sketch: Callable[[torch.Tensor], torch.Tensor] | None = None
    """From all rows of samples to the statistic of their sketches, where rows are chosen."""


def judged(
    o: torch.Tensor,
    axes: Sequence[str],
    valid: torch.Tensor | None,
    tokens: list[int] | None,
    storage: torch.dtype,
) -> Judged:
    """`o` as stored, of the chosen `tokens` only where there are some."""
    layout = layout_of(o.shape, axes, tokens)
    mask = None if valid is None else valid.expand(o.shape)
    return Judged(layout, Scales(layout, o, mask, storage=storage))


def sketch_of_rows(
    axes: Sequence[str], shape: Sequence[int], oracle: torch.Tensor, rms: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    """For outputs [k, *shape], all rows of them, against the sketches of the oracle."""
    layout = layout_of(shape, axes)
    signs = sign_vectors(layout.columns, oracle.device)

    def statistic(y: torch.Tensor) -> torch.Tensor:
        products = layout.matrix(y) @ signs
        return sketch_errors(products.reshape(len(y), -1, WIDTH), oracle, rms, layout.columns)

    return statistic


def model_of(r: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Flat positions where the rounded model has other bits than r, in i32 where they fit, and m
    there; None for none."""
    r, m = r.contiguous().flatten(), m.contiguous().flatten()
    other = (r.view(torch.int16) != m.view(torch.int16)) & ~(r.isnan() & m.isnan())
    at = other.nonzero().flatten()
    if not at.numel():
        return None
    return (at if r.numel() > 1 << 31 else at.int()), m[at]


def spread_of(output: Judged, chosen: torch.Tensor) -> dict[str, Any]:
    """The spread entry of an output, from its samples, m first."""
    (entry,) = spreads_of_kinds(output, chosen, kinds=1)
    return entry


def spreads_of_kinds(
    output: Judged, chosen: torch.Tensor, every: torch.Tensor | None = None, *, kinds: int
) -> list[dict[str, Any]]:
    """The spread entries of an output whose samples are of one or two kinds, as many of each;
    `chosen` are the stored rows of the samples, m first, `every` all rows where they are more."""
    noise = _noise(output.scales, chosen[:1])
    parts = [
        _figures(
            output, chosen[:1], noise, chosen[1:][some], None if every is None else every[1:][some]
        )
        for some in _portions(chosen if every is None else every)
    ]
    figures = parts[0]
    if len(parts) > 1:
        figures = {name: torch.cat([part[name] for part in parts]) for name in figures}
    (entries,) = _entries(figures, kinds)
    return entries


def spreads_of(
    axes: Sequence[str],
    oracles: torch.Tensor,
    samples: torch.Tensor,
    valid: torch.Tensor | None = None,
    *,
    kinds: int,
) -> list[list[dict[str, Any]]]:
    """The spread entries of n outputs of one shape: `oracles` [n, *shape], as stored, `samples`
    [n, 1 + kinds * runs, *shape], each one's m first, `valid` [n, *shape]."""
    layout = layout_of(oracles.shape[1:], axes)
    scales = Scales(layout, oracles, valid, storage=samples.dtype)
    m = samples[:, :1]
    return _entries(_judged(scales, m, _noise(scales, m), samples[:, 1:]), kinds)


def _entries(figures: Figures, kinds: int) -> list[list[dict[str, Any]]]:
    """Of each output one for each kind of samples."""
    runs = next(iter(figures.values())).shape[-1] // kinds
    whole = {name: values.unflatten(-1, (kinds, runs)) for name, values in figures.items()}
    entries = [{"runs": runs} | entry for entry in summaries(whole)]
    return [entries[i : i + kinds] for i in range(0, len(entries), kinds)]


def _figures(
    output: Judged,
    m: torch.Tensor,
    noise: torch.Tensor | None,
    y: torch.Tensor,
    every: torch.Tensor | None,
) -> Figures:
    figures = _judged(output.scales, m, noise, y)
    if output.sketch is not None and every is not None:
        figures["sketch"] = output.sketch(every)
    return figures


def _noise(scales: Scales, m: torch.Tensor) -> torch.Tensor | None:
    """Of a 16-bit model; None for any other."""
    return scales.noise(m) if m.dtype in NARROW else None


def _judged(
    scales: Scales, m: torch.Tensor, noise: torch.Tensor | None, y: torch.Tensor
) -> Figures:
    figures = statistics(scales, y)
    figures["gain"] = figures["gain"].abs()
    if noise is not None:
        figures |= scales.bits(y, m, noise)
    return figures


def _portions(samples: torch.Tensor) -> list[slice]:
    """Of the samples behind the first as many at a time as their copies have room for."""
    room = _ROOM if is_host(samples.device) else stack_elements(_ROOM_ON_DEVICE)
    step = max(1, room // max(1, samples[0].numel()))
    return [slice(start, start + step) for start in range(0, len(samples) - 1, step)]


def summaries(figures: Figures) -> list[dict[str, list[float]]]:
    """Mean, standard deviation and largest of each figure [..., k], to three significant digits:
    for every index before k."""
    values = torch.stack(list(figures.values()), -2)
    values = values.reshape(-1, *values.shape[-2:])
    deviations = values.std(-1) if values.shape[-1] > 1 else values.new_zeros(values.shape[:-1])
    columns = torch.stack([values.mean(-1), deviations, values.amax(-1)], -1).tolist()
    return [
        {name: [_short(value) for value in row] for name, row in zip(figures, rows, strict=True)}
        for rows in columns
    ]


def _short(value: float) -> float:
    return float(f"{value:.3g}") if math.isfinite(value) else value
