"""The figures of the report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..results import ChainRow, Checkpoint, Run, Where
from .overview import checkpoints, grouped
from .svg import BLUE, FAINT, GREEN, INK, LINE, ORANGE, TINT, drawing, short
from .words import figure

PANEL = 344  # pixels: a phone shows it whole
SMALL_PANEL = 224
MOST_ROWS = 60  # of a heat map
MOST_STRIP = 96  # cells of one axis
_LEAST = 1e-4  # share of a limit, the left end of logarithmic axes


def _tinted(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares in 0..1 as RGBA: the tint, by opacity."""
    alpha = np.clip(share, 0.0, 1.0)
    return np.dstack([*(np.full(share.shape, channel) for channel in TINT), alpha])


def error_against_limit(runs: list[Run]) -> list[Markup]:
    """Per dtype: each output's error and the reference's own, both as shares of the limit."""
    points: dict[str, list[tuple[float, float, bool]]] = defaultdict(list)
    for checkpoint in checkpoints(runs):
        for output, gate in checkpoint.gates:
            if gate.name == "tensor" and 0 < gate.limit < math.inf:
                shares = (output.recorded_error / gate.limit, gate.ratio)
                x, y = (min(max(share, _LEAST), 1e3) for share in shares)
                points[checkpoint.dtype].append((x, y, gate.passed))
    return [_density(dtype, found) for dtype, found in sorted(points.items())]


def _density(dtype: str, points: list[tuple[float, float, bool]]) -> Markup:
    x, y = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    top = max(2.0, float(y.max()) * 2, float(x.max()) * 2)
    edges = np.geomspace(_LEAST, top, 49)
    counts = np.histogram2d(np.log(x), np.log(y), bins=[np.log(edges)] * 2)[0].T
    shade = np.where(counts > 0, 0.25 + 0.75 * np.log1p(counts) / np.log1p(counts.max()), 0)
    title = f"{dtype}: error of {len(points)} outputs against the reference's own"
    with drawing(PANEL, 300, title) as d:
        corners = np.log10([_LEAST, top, _LEAST, top])
        d.axes.imshow(_tinted(shade), origin="lower", extent=tuple(corners), aspect="auto")
        d.axes.axhline(0, color=ORANGE, linewidth=1.2)
        d.axes.plot(corners[:2], corners[:2], color=FAINT, linewidth=0.8, linestyle=(0, (3, 2)))
        beyond = [(math.log10(p[0]), math.log10(p[1])) for p in points if not p[2]][:200]
        if beyond:
            across, up = zip(*beyond, strict=True)
            d.axes.scatter(across, up, marker="x", s=16, linewidth=1, color=ORANGE)
        ticks = range(int(math.log10(_LEAST)), math.floor(math.log10(top)) + 1)
        d.axes.set_xticks(list(ticks), [_power(t) for t in ticks])
        d.axes.set_yticks(list(ticks), [_power(t) for t in ticks])
        d.axes.text(corners[0], 0.06, " limit", color=ORANGE, fontsize=7.5)
        d.axes.set_xlabel("reference's own error / limit")
        d.axes.set_ylabel("error / limit")
        d.axes.set_title(f"{dtype}, {len(points):,} outputs")
    return d.svg


def _power(exponent: int) -> str:
    return f"1e{exponent}" if abs(exponent) > 3 else f"{10.0**exponent:g}"


def octaves(runs: list[Run]) -> list[Markup]:
    """Per dtype: how the errors of all elements spread over octaves, a line for each device."""
    sums: dict[str, dict[str, NDArray[np.float64]]] = defaultdict(dict)
    for checkpoint in checkpoints(runs):
        for output in checkpoint.outputs:
            bins = np.array(output.informative.octaves, dtype=float)
            known = sums[checkpoint.dtype].get(checkpoint.device)
            if known is None and bins.size:
                sums[checkpoint.dtype][checkpoint.device] = bins
            elif known is not None and known.size == bins.size:
                known += bins
    return [_histogram(dtype, found) for dtype, found in sorted(sums.items()) if found]


def _histogram(dtype: str, by_device: dict[str, NDArray[np.float64]]) -> Markup:
    with drawing(PANEL, 240, f"{dtype}: octave histogram of scaled error") as d:
        styles = [(BLUE, "-"), (GREEN, (0, (4, 1.5))), (ORANGE, (0, (1, 1))), (INK, (0, (6, 2)))]
        for (device, bins), (colour, line) in zip(sorted(by_device.items()), styles, strict=False):
            share = 100 * bins / max(bins.sum(), 1)
            d.axes.step(
                range(bins.size), share, where="mid", color=colour, linestyle=line, linewidth=1.4,
                label=short(device, 20),
            )  # fmt: skip
        size = max(bins.size for bins in by_device.values())
        last = max((int(np.flatnonzero(b)[-1]) for b in by_device.values() if b.any()), default=0)
        ticks = list(range(1, size, 4))
        d.axes.set_xticks(ticks, [f"2{_raised(t - 5)}" for t in ticks])
        d.axes.set_xlim(-0.5, min(size, max(last + 2, 10)) - 0.5)
        d.axes.set_yscale("symlog", linthresh=0.01)
        d.axes.set_yticks([0, 0.01, 0.1, 1, 10, 100], ["0", "0.01", "0.1", "1", "10", "100 %"])
        d.axes.set_ylim(0, 130)
        d.axes.minorticks_off()
        d.axes.set_xlabel("error in roundings, |d| / (u · scale)")
        d.axes.set_title(f"{dtype}, share of elements")
        d.axes.legend(loc="upper right")
    return d.svg


def _raised(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def worst_gates(runs: list[Run]) -> Markup | None:
    """Heat map, block x gate: the largest share of a limit on any device, in any dtype."""
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for checkpoint in checkpoints(runs):
        for _, gate in checkpoint.gates:
            if gate.limit > 0:
                known = shares[checkpoint.block].get(gate.name, 0.0)
                shares[checkpoint.block][gate.name] = max(known, gate.ratio)
    order = ("tensor", "token", "token x head", "channel", "tile", "element", "gain", "conformance")
    used = {gate for gates in shares.values() for gate in gates}
    columns = [g for g in order if g in used] + sorted(used - set(order))[:10]
    rows = sorted(shares, key=lambda block: -max(shares[block].values()))[:MOST_ROWS]
    if not rows:
        return None
    values = np.array([[shares[row].get(c, math.nan) for c in columns] for row in rows])
    width, height = 130 + 56 * len(columns), 76 + 20 * len(rows)
    with drawing(width, height, "Largest share of a limit, by block and gate") as d:
        tints = _tinted(np.nan_to_num(np.minimum(values, 1.0)) * 0.6)
        d.axes.imshow(np.where((values > 1)[:, :, None], 0.0, tints), aspect="auto")
        for (i, j), value in np.ndenumerate(values):
            if not math.isnan(value):
                _label_cell(d.axes, j, i, value)
        d.axes.set_xticks(range(len(columns)), [short(c, 14) for c in columns], rotation=35)
        for label in d.axes.get_xticklabels():
            label.set_horizontalalignment("left")
            label.set_rotation_mode("anchor")
        d.axes.set_yticks(range(len(rows)), [short(row, 20) for row in rows])
        d.axes.tick_params(length=0, labeltop=True, labelbottom=False)
        d.axes.spines[:].set_visible(False)
    return d.svg


def _label_cell(axes: Axes, x: int, y: int, value: float) -> None:
    beyond = value > 1
    words = f"✕ {figure(value)}" if beyond else f"{value:.2f}"
    axes.text(
        x, y, words, ha="center", va="center", fontsize=7.5, color=ORANGE if beyond else INK,
        fontweight="bold" if beyond else "normal",
    )  # fmt: skip


def error_maps(where: Where, title: str) -> Markup | None:
    """Heat strips of one failure: its error along each axis, relative to that axis' largest."""
    maps = [m for m in where.maps if m.energy and any(e > 0 for e in m.energy)][:8]
    if not maps:
        return None
    with drawing(PANEL, 34 + 26 * len(maps), f"{title}: error by axis") as d:
        for row, error_map in enumerate(maps):
            energy = np.nan_to_num(np.array(error_map.energy), posinf=np.finfo(float).max)
            cells = [part.max() for part in np.array_split(energy, min(energy.size, MOST_STRIP))]
            strip = np.sqrt(np.array(cells) / max(cells))[None]
            d.axes.imshow(_tinted(strip), extent=(0, 1, row + 0.4, row - 0.4), aspect="auto")
            d.axes.text(1.02, row, f"{energy.size}", va="center", fontsize=7.5, color=FAINT)
        d.axes.set_xlim(0, 1)
        d.axes.set_ylim(len(maps) - 0.5, -0.5)
        d.axes.set_yticks(range(len(maps)), [short(m.name, 18) for m in maps])
        d.axes.set_xticks([0, 1], ["first", "last"])
        d.axes.tick_params(length=0)
        d.axes.spines[:].set_visible(False)
    return d.svg


def error_picture(where: Where, title: str) -> Markup | None:
    """Heat map of one failure: its error over rows and columns, a shade for every halving."""
    picture = where.picture
    levels = picture.levels if picture else []
    if not picture or len(levels) < 2 or len(levels[0]) < 2:  # a line says no more than a strip
        return None
    with drawing(PANEL, 58 + 6 * max(len(levels), 6), f"{title}: error by row and column") as d:
        d.axes.imshow(
            _tinted(np.array(levels) / 15), extent=(0, picture.columns, picture.rows, 0),
            aspect="auto",
        )  # fmt: skip
        d.axes.set_xlabel(short(picture.column_axes, 40))
        d.axes.set_ylabel(short(picture.row_axes, 24))
        for axis in (d.axes.xaxis, d.axes.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True))
    return d.svg


class LayerPoint(Protocol):
    """What a chart over layers draws of one."""

    layer: int
    error: float
    limit: float
    reference: float


def over_layers(block: str, title: str, points: Sequence[LayerPoint]) -> Markup:
    """One kind of block: its largest error in each layer, with limit and reference."""
    with drawing(SMALL_PANEL, 136, title) as d:
        at = [point.layer for point in points]
        drawn = (
            ([p.limit for p in points], ORANGE, 1.0, "-"),
            ([p.reference for p in points], FAINT, 0.9, (0, (2, 2))),
            ([p.error for p in points], INK, 1.4, "-"),
        )
        positive = [[v if 0 < v < math.inf else math.nan for v in line[0]] for line in drawn]
        for values, (_, colour, width, style) in zip(positive, drawn, strict=True):
            d.axes.plot(at, values, color=colour, linewidth=width, linestyle=style)
        beyond = [(p.layer, p.error) for p in points if p.error > p.limit and p.error < math.inf]
        if beyond:
            across, up = zip(*beyond, strict=True)
            d.axes.scatter(across, up, marker="x", s=18, linewidth=1, color=ORANGE)
        ends = [np.nanmin(positive), np.nanmax(positive)]
        d.axes.set_yscale("log")
        d.axes.set_yticks(ends, [figure(end) for end in ends])
        d.axes.minorticks_off()
        d.axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        d.axes.set_title(short(block, 30))
    return d.svg


def spine(rows: list[ChainRow]) -> list[ChainRow]:
    """Of every module that passes hidden states on, the step nearest to its limit, in order."""
    judged = [row for row in rows if "cache" not in row.block]
    steps = grouped(((_module(row), row.output), row) for row in judged)
    return [max(found, key=_nearness) for found in steps.values()]


def _module(row: ChainRow) -> str:
    """Without the number of the call: model.layers.0#2 is model.layers.0."""
    return row.checkpoint.rsplit("#", 1)[0]


def _nearness(row: ChainRow) -> float:
    share = row.chained / row.chained_limit if row.chained_limit > 0 else 0.0
    return math.inf if math.isnan(share) else share


def depth(checkpoint: Checkpoint) -> Markup | None:
    """A chain: introduced, inherited and whole error over depth, with limit and reference."""
    rows = spine(checkpoint.chain.rows) if checkpoint.chain else []
    if len(rows) < 2:
        return None
    title = f"{checkpoint.recording}, {checkpoint.device}"
    with drawing(PANEL, 300, f"Error over depth: {title}") as d:
        at = range(len(rows))

        def line(values: list[float], colour: str, **style: object) -> None:
            drawn = [v if 0 < v < math.inf else math.nan for v in values]
            d.axes.plot(at, drawn, color=colour, **style)  # type: ignore[arg-type]

        line([r.chained_limit for r in rows], ORANGE, linewidth=1.2)
        line([r.chained for r in rows], INK, linewidth=1.6)
        line([r.reference for r in rows], FAINT, linewidth=1, linestyle=(0, (2, 2)))
        line([r.isolated for r in rows], BLUE, marker="o", markersize=3, linewidth=1)
        line([r.inherited for r in rows], GREEN, marker="s", markersize=3, linewidth=1)
        wrong = [i for i in at if rows[i].diagnosis in ("kernel", "wiring")]
        d.axes.vlines(wrong, 0, 1, transform=d.axes.get_xaxis_transform(), color=ORANGE, alpha=0.35)
        d.axes.set_yscale("log")
        d.axes.yaxis.set_major_formatter(lambda value, _: f"1e{math.log10(value):.0f}")
        d.axes.minorticks_off()
        d.axes.grid(axis="y", color=LINE, linewidth=0.5, alpha=0.5)
        every = max(1, math.ceil(len(rows) / 12))
        ticks = list(at)[::every]
        names = [short(_module(rows[i]).removeprefix("model."), 14) for i in ticks]
        d.axes.set_xticks(ticks, names, rotation=45, ha="right", rotation_mode="anchor")
        d.axes.set_title(short(title, 52))
    return d.svg
