"""Error over the layers of deep models: a map of layers x blocks, and a chart of each block."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from markupsafe import Markup

from ..results import Checkpoint, over
from . import figures

DEEP = 8  # layers from which on a model has a map: what tiny models show, the matrix shows
MOST_MODELS = 6
MOST_CHARTS = 12  # of a model
_LAYER = re.compile(r"(?:^|.*?[^\d.]\.)(\d+)(?:[.:#]|$)")  # the first number that is a path's step


def layer_of(checkpoint_id: str) -> tuple[int, str] | None:
    """The number of the layer that a checkpoint is in, and the part of its id that says so."""
    found = _LAYER.match(checkpoint_id)
    if not found or found.end() == len(checkpoint_id):  # a # that is followed by nothing
        return None
    return int(found[1]), found[0]


@dataclass
class LayerCell:
    """The checkpoints of one kind of block in one layer."""

    layer: int
    search: str  # what their ids begin with
    count: int = 0
    failed: int = 0
    ratio: float = math.nan  # share of its limit that the worst uses
    error: float = math.nan  # of the output whose error is nearest to its limit
    limit: float = math.nan
    reference: float = math.nan

    def add(self, checkpoint: Checkpoint) -> None:
        """One more."""
        self.count += 1
        self.failed += checkpoint.failed
        for output, gate in checkpoint.gates:
            ratio = math.inf if not gate.passed and gate.ratio <= 1 else gate.ratio
            if not ratio <= self.ratio:
                self.ratio = ratio
            if gate.name == "tensor" and not gate.ratio <= over(self.error, self.limit):
                self.error, self.limit = gate.statistic, gate.limit
                self.reference = output.recorded_error

    @property
    def words(self) -> str:
        """The text of the cell."""
        if self.failed:
            return "✕"
        return "○" if math.isnan(self.ratio) else f"{100 * self.ratio:.0f}"


@dataclass
class Depth:
    """One model on one device in one dtype."""

    model: str
    device: str
    dtype: str
    rows: dict[str, dict[int, LayerCell]] = field(default_factory=lambda: defaultdict(dict))
    charts: list[Markup] = field(default_factory=list)

    @property
    def layers(self) -> list[int]:
        """Those that have a checkpoint, in order."""
        return sorted({layer for cells in self.rows.values() for layer in cells})

    @property
    def failed(self) -> int:
        """Checkpoints in layers that failed."""
        return sum(cell.failed for cells in self.rows.values() for cell in cells.values())

    @property
    def ratio(self) -> float:
        """The largest share of a limit."""
        return max((_size(cells) for cells in self.rows.values()), default=0.0)


def _size(cells: dict[int, LayerCell]) -> float:
    return max((c.ratio for c in cells.values() if not math.isnan(c.ratio)), default=0.0)


def depths(checkpoints: Iterable[Checkpoint]) -> tuple[list[Depth], int]:
    """Models of DEEP layers and more, those with failures first; and how many there are in all."""
    found: dict[tuple[str, str, str], Depth] = {}
    for c in checkpoints:
        if layer := layer_of(c.checkpoint):
            number, search = layer
            key = c.recording.split("/", 1)[0], c.device, c.dtype
            cells = found.setdefault(key, Depth(*key)).rows[c.block]
            cells.setdefault(number, LayerCell(number, search)).add(c)
    deep = [d for d in found.values() if d.layers[-1] + 1 >= DEEP and len(d.layers) > 1]
    deep.sort(key=lambda d: (not d.failed, -d.ratio, d.model, d.device, d.dtype))
    for each in deep[:MOST_MODELS]:
        each.charts = _charts(each)
    return deep[:MOST_MODELS], len(deep)


def _charts(depth: Depth) -> list[Markup]:
    """Of the blocks that come nearest to their limits, in the model's order."""
    drawn = [b for b, cells in depth.rows.items() if any(c.error > 0 for c in cells.values())]
    nearest = sorted(drawn, key=lambda block: -_size(depth.rows[block]))[:MOST_CHARTS]
    charts = []
    for block in (b for b in drawn if b in nearest):
        cells = [cell for _, cell in sorted(depth.rows[block].items())]
        title = f"{block} of {depth.model}, {depth.device} {depth.dtype}: error over layers"
        charts.append(figures.over_layers(block, title, cells))
    return charts
