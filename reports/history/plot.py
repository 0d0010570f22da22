"""Draws accuracy over commits: a panel for every block that moved, the others by name."""

from __future__ import annotations

import math
import textwrap
from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ..files import replace_bytes
from .rules import GROWTH
from .trend import Course, Courses

_COLUMNS = 3
_PANELS = 24
_MOVED = 1.01  # a course within a percent of where it began is not drawn
_LEGEND = (
    "E_T against the float64 oracle, relative to the first commit; lower is better.",
    "Line: mean of a block's checkpoints, its last value above.   Shade: up to the worst of them.  "
    f" Dashed: {GROWTH}x.   Cross: a checkpoint fails.",
)
_INK, _PALE, _LINE, _ALARM = "#24292f", "#8c959f", "#0a5cad", "#c4320a"


def draw(courses: Courses, out: Path) -> None:
    """Writes the picture; its suffix says which format. Raises OSError."""
    moved = sorted(filter(lambda name: _moves(courses.blocks[name]), courses.blocks),
                   key=lambda name: -_highest(courses.blocks[name]))  # fmt: skip
    shown = moved[:_PANELS]
    still = [name for name in courses.blocks if name not in shown]
    rows = max(1, math.ceil(len(shown) / _COLUMNS))
    footer = textwrap.wrap(_footer(still, len(moved) > len(shown)), 130)
    head, foot, panel = 1.25, 0.25 + 0.19 * len(footer), 2.2  # inches
    height = head + rows * panel + 0.75 + foot
    figure = Figure(figsize=(11, height), facecolor="white")
    grid = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
    figure.subplots_adjust(
        left=0.065, right=0.965, top=1 - head / height, bottom=(foot + 0.75) / height,
        hspace=0.34, wspace=0.1,
    )  # fmt: skip
    _heading(figure, courses, height)
    panels = list(grid.flat)
    for axes, name in zip(panels, shown, strict=False):
        _panel(axes, name, courses.blocks[name])
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    if shown:
        _scale(panels[: len(shown)], [courses.blocks[name] for name in shown])
        _name_commits(panels[: len(shown)], courses.commits)
    for index, line in enumerate(footer):
        y = (foot - 0.2 - 0.19 * index) / height
        figure.text(0.065, y, line, fontsize=8.5, color=_PALE, parse_math=False)
    _write(figure, out)


def _moves(course: Course) -> bool:
    values = [v for v in (*course.mean, *course.worst) if not math.isnan(v)]
    return any(course.failed) or max(values) > _MOVED or min(values) < 1 / _MOVED


def _highest(course: Course) -> float:
    """Failures first, then by how far the mean and the worst checkpoint are above the start."""
    worst = course.worst[-1] if not math.isnan(course.worst[-1]) else 1.0
    return (1e9 if any(course.failed) else 0.0) + course.mean[-1] + worst


def _footer(still: list[str], more: bool) -> str:
    if not still:
        return ""
    words = "Not drawn" if more else "Moved by less than a percent"
    return f"{words}: {', '.join(still)}"


def _heading(figure: Figure, courses: Courses, height: float) -> None:
    figure.text(
        0.065, 1 - 0.36 / height, f"Error over commits on {courses.device}", fontsize=15,
        color=_INK, weight="bold", parse_math=False,
    )  # fmt: skip
    for index, line in enumerate(_LEGEND):
        figure.text(0.065, 1 - (0.62 + 0.2 * index) / height, line, fontsize=9, color=_PALE)


def _panel(axes: Axes, name: str, course: Course) -> None:
    x = range(len(course.mean))
    axes.set_yscale("log", base=2)
    axes.axhline(1, color=_PALE, linewidth=0.8)
    axes.axhline(GROWTH, color=_ALARM, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.6)
    axes.fill_between(x, course.mean, course.worst, color=_LINE, alpha=0.14, linewidth=0)
    axes.plot(x, course.mean, color=_LINE, linewidth=1.9, solid_capstyle="round")
    axes.plot(x[-1:], course.mean[-1:], "o", color=_LINE, markersize=4)
    failed = [i for i in x if course.failed[i]]
    axes.plot(failed, [course.worst[i] for i in failed], "x", color=_ALARM, markersize=7,
              markeredgewidth=2, clip_on=False, zorder=5)  # fmt: skip
    axes.set_title(name, loc="left", fontsize=10.5, color=_INK, pad=5, parse_math=False)
    last = course.mean[-1]
    axes.set_title(
        f"{last:.2f}x", loc="right", fontsize=10.5, pad=5, weight="bold",
        color=_ALARM if last > GROWTH or course.failed[-1] else _LINE,
    )  # fmt: skip
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_PALE)
    axes.tick_params(which="both", length=0, labelsize=8.5, labelcolor=_PALE)
    axes.grid(axis="y", color="#eaeef2", linewidth=0.8)
    axes.set_axisbelow(True)


def _scale(panels: list[Axes], courses: list[Course]) -> None:
    """One scale for all panels, so that they can be compared; at least an octave both ways."""
    values = [v for c in courses for v in (*c.mean, *c.worst) if math.isfinite(v)]
    panels[0].set_ylim(min(0.5, *values) / 1.12, max(2.0, *values) * 1.25)
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    panels[0].yaxis.set_minor_formatter(NullFormatter())


def _name_commits(panels: list[Axes], commits: list[str]) -> None:
    """Below the lowest panel of every column, and no more than fit."""
    every = math.ceil(len(commits) / 12)
    ticks = list(range(len(commits) - 1, -1, -every))[::-1]
    for axes in panels[-_COLUMNS:]:
        axes.set_xticks(ticks, [commits[i] for i in ticks], rotation=55, ha="right",
                        rotation_mode="anchor", family="monospace", parse_math=False)  # fmt: skip
        axes.tick_params(axis="x", labelbottom=True, labelsize=7.5)
        axes.set_xlim(-0.3, len(commits) - 0.7)


def _write(figure: Figure, out: Path) -> None:
    """With no date and no random ids: the same history gives the same bytes."""
    buffer = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "plumbline", "svg.fonttype": "none"}):
        metadata = {"Date": None} if out.suffix == ".svg" else None
        figure.savefig(buffer, format=out.suffix[1:], dpi=150, metadata=metadata)
    replace_bytes(out, buffer.getvalue())
