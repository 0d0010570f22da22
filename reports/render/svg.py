"""Figures of matplotlib as SVG in the fonts and the colours of the page, light and dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Stand-ins that end as the page's colours, so that one figure serves both themes.
INK, FAINT, LINE = "#010203", "#010204", "#010205"
BLUE, ORANGE, GREEN = "#010206", "#010207", "#010208"
_VARIABLES = {
    INK: "--ink", FAINT: "--faint", LINE: "--line",
    BLUE: "--blue", ORANGE: "--orange", GREEN: "--green",
}  # fmt: skip
# The blue that cells and densities are tinted with; by opacity, so that it suits any background.
TINT = (0.0, 0.45, 0.7)
_INCH = 96.0

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.parse_math": False,  # names are from recordings
    "font.family": ["DejaVu Sans"],
    "font.size": 8.25,  # points: 11 pixels
    "axes.titlesize": 8.25,
    "axes.labelsize": 8.25,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "text.color": INK,
    "axes.titlecolor": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": LINE,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "image.interpolation": "none",
    "image.composite_image": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


class Drawing:
    """A figure with one pair of axes; after its `with` block, `svg` is its text."""

    def __init__(self, width: int, height: int) -> None:
        """`width` and `height` in pixels."""
        self.figure = Figure(figsize=(width / _INCH, height / _INCH), layout="constrained")
        self.axes: Axes = self.figure.add_subplot()
        self.svg = Markup("")


@contextmanager
def drawing(width: int, height: int, title: str) -> Iterator[Drawing]:
    """A drawing in the page's style; `title` is what screen readers say."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # glyphs that this machine's font lacks
        drawn = Drawing(width, height)
        yield drawn
        drawn.svg = _svg(drawn.figure, title)


def _svg(figure: Figure, title: str) -> Markup:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[a-z]+[\w.]*_\d+"', "", text)  # nothing refers to them; not unique
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r'<svg ([^>]*?)width="[\d.]+pt" height="[\d.]+pt"', r"<svg \1", text, count=1)
    width = round(figure.get_figwidth() * _INCH)
    label = escape(title, quote=True)
    opening = f'<svg role="img" aria-label="{label}" style="width:{width}px"'
    return Markup(text.replace("<svg", opening, 1))


def short(name: str, most: int = 34) -> str:
    """A name on one line; what is too long loses its middle."""
    name = " ".join(name.split())
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"
