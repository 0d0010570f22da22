"""The statistics that harness gates are about, of many outputs at once, against the oracle.

The same definitions as harness/statistics.h, reference_scales.h, layout.h and sample_gates.h; a
test holds both to each other. `y` are the outputs [k, *shape] of k kernels, every figure comes back
as [k] in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

SMALLEST_GROUP = 8
"""Smaller groups are left out."""
SMALLEST_SCALE = 2.0**-10
"""Of a group or row, relative to the median one."""
_MEDIAN_TO_SIGMA = 0.6745
_TILE = 8
_SPARSE_TILE = 64
"""Columns of a tile where only some rows are there."""

Figures = dict[str, torch.Tensor]


@dataclass
class Layout:
    """An output with named axes as rows (batch, token) x columns (all other axes in order)."""

    order: list[int]
    batch: int
    tokens: list[int]
    """The index of each stored token in the whole output."""
    whole: bool
    """All tokens are stored."""
    has_rows: bool
    has_columns: bool
    columns: int
    head: tuple[int, int, int] | None
    """Columns as before x heads x behind."""

    def matrix(self, t: torch.Tensor) -> torch.Tensor:
        """[..., rows, columns] of a tensor with or without samples in front, in float64."""
        extra = t.ndim - len(self.order)
        order = [*range(extra), *(axis + extra for axis in self.order)]
        return t.permute(order).reshape(*t.shape[:extra], self.rows, self.columns).double()

    @property
    def rows(self) -> int:
        return self.batch * len(self.tokens)


def layout_of(
    shape: Sequence[int], axes: Sequence[str], chosen: Sequence[int] | None = None
) -> Layout:
    """`chosen`: the stored tokens of a sampled output."""
    batch = axes.index("batch") if "batch" in axes else None
    token = next((axes.index(name) for name in ("token", "kv_token") if name in axes), None)
    first = [axis for axis in (batch, token) if axis is not None]
    rest = [axis for axis in range(len(shape)) if axis not in first]
    head = next((axis for axis in rest if axes[axis] in ("head", "kv_head")), None)
    split = None
    if head is not None:
        at = rest.index(head)
        before = math.prod(shape[axis] for axis in rest[:at])
        split = (before, shape[head], math.prod(shape[axis] for axis in rest[at + 1 :]))
    tokens = 1 if token is None else shape[token]
    return Layout(
        order=first + rest,
        batch=1 if batch is None else shape[batch],
        tokens=list(range(tokens)) if chosen is None else list(chosen),
        whole=chosen is None,
        has_rows=token is not None,
        has_columns=bool(rest),
        columns=math.prod(shape[axis] for axis in rest),
        head=split,
    )


class Scales:
    """What the statistics need of the oracle, computed once for all outputs."""

    def __init__(self, layout: Layout, o: torch.Tensor, valid: torch.Tensor | None = None) -> None:
        """`valid` has the shape of `o`."""
        self.layout = layout
        self.o = layout.matrix(o)
        self.usable = self.o.isfinite()
        if valid is not None:
            self.usable &= layout.matrix(valid) != 0
        self.all_usable = bool(self.usable.all())
        self.known = self.o if self.all_usable else torch.where(self.usable, self.o, 0.0)
        self._sum = self.known.square().sum()
        self._element = torch.maximum(self.known.abs(), self._row_scales()[:, None])
        self._families = self._make_families()

    def _row_scales(self) -> torch.Tensor:
        magnitudes = torch.where(self.usable, self.o.abs(), torch.nan)
        rows = _medians(magnitudes) / _MEDIAN_TO_SIGMA
        smallest = SMALLEST_SCALE * float(_medians(rows[None])[0])
        rows = rows.nan_to_num(0.0)
        return rows.clamp_min(0.0 if math.isnan(smallest) else smallest)

    def _make_families(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Of each family the sizes of its groups and what their errors are measured in."""
        families = {}
        counts, squares = self.usable.double()[None], self.known.square()[None]
        for name in family_names(self.layout):
            sizes = group_sums(counts, name, self.layout)[0]
            sums = group_sums(squares, name, self.layout)[0]
            counted = sizes >= SMALLEST_GROUP
            scales = torch.where(counted, (sums / sizes).sqrt(), torch.nan)
            smallest = SMALLEST_SCALE * float(_medians(scales[None])[0])
            scales = scales.nan_to_num(0.0).clamp_min(0.0 if math.isnan(smallest) else smallest)
            families[name] = (torch.where(counted, sizes, 0.0), scales)
        return families

    def statistics(self, y: torch.Tensor) -> Figures:
        """E_T as `tensor`, M_A by the names of its families, M_E as `element`, g as `gain`."""
        off = self.layout.matrix(y) - self.o
        if not self.all_usable:
            off = torch.where(self.usable, off, 0.0)
        squares = off.square()
        figures = {"tensor": _quotient(squares.sum((1, 2)), self._sum).sqrt()}
        for name in self._families:
            figures[name] = _largest(self._group_errors(squares, name))
        figures["element"] = _largest(_quotient(off.abs(), self._element).flatten(1))
        figures["gain"] = _quotient((off * self.known).sum((1, 2)), self._sum)
        return figures

    def families(self) -> list[str]:
        return list(self._families)

    def group_errors(self, y: torch.Tensor) -> Figures:
        """v_g of every group of each family, 0 for groups that do not count."""
        off = torch.where(self.usable, self.layout.matrix(y) - self.o, 0.0)
        return {name: self._group_errors(off.square(), name) for name in self._families}

    def group_sizes(self, family: str) -> torch.Tensor:
        """Usable elements of each group, 0 for groups that do not count."""
        return self._families[family][0]

    def _group_errors(self, squares: torch.Tensor, family: str) -> torch.Tensor:
        sizes, scales = self._families[family]
        errors = _quotient((group_sums(squares, family, self.layout) / sizes).sqrt(), scales)
        return torch.where(sizes > 0, errors, 0.0)

    def differing(self, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        """How many valid elements of each output are not m's; -0 equals 0, NaN equals NaN."""
        y, m = self.layout.matrix(y), self.layout.matrix(m)
        same = (y == m) | (y.isnan() & m.isnan())
        return (~same & self.usable).sum((1, 2)).double()


def family_names(layout: Layout) -> list[str]:
    names = ["token"] if layout.has_rows else []
    names += ["token x head"] if layout.has_rows and layout.head is not None else []
    names += ["channel"] if layout.has_columns else []
    return names + (["tile"] if layout.has_rows and layout.has_columns else [])


def group_sums(x: torch.Tensor, family: str, layout: Layout) -> torch.Tensor:
    """[k, rows, columns] summed over the groups of a family: [k, groups]."""
    if family == "token":
        return x.sum(2)
    if family == "channel":
        return x.sum(1)
    if family == "token x head":
        assert layout.head is not None
        return x.reshape(*x.shape[:2], *layout.head).sum((2, 4)).flatten(1)
    return _tile_sums(x, layout)


def _tile_sums(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Tiles of 8 tokens of one batch entry; where some are missing, of those that are there."""
    width = _TILE if layout.whole else _SPARSE_TILE
    across = -(-layout.columns // width)
    x = torch.nn.functional.pad(x, (0, across * width - layout.columns))
    x = x.reshape(*x.shape[:2], across, width).sum(3)
    tiles = sorted({token // _TILE for token in layout.tokens})
    at = torch.tensor([tiles.index(token // _TILE) for token in layout.tokens], device=x.device)
    x = x.reshape(len(x), layout.batch, len(layout.tokens), across)
    out = x.new_zeros(len(x), layout.batch, len(tiles), across)
    return out.index_add_(2, at, x).flatten(1)


def sketch_errors(
    y: torch.Tensor, oracle: torch.Tensor, rms: torch.Tensor, columns: int
) -> torch.Tensor:
    """The largest error of a row by its sketch [k, rows, 16], in units of the row's size: [k]."""
    middle = float(rms.sort().values[len(rms) // 2]) if len(rms) else 0.0
    energy = (y - oracle).square().sum(-1)
    errors = (energy / (oracle.shape[-1] * columns)).sqrt()
    return _largest(_quotient(errors, rms.clamp_min(SMALLEST_SCALE * middle)))


def _quotient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a / b with 0/0 = 0 and x/0 = Inf."""
    return torch.where((a == 0) & (b == 0), 0.0, a / b)


def _largest(values: torch.Tensor) -> torch.Tensor:
    """Of each row, 0 where there is none; NaN beats every number."""
    if values.shape[1] == 0:
        return values.new_zeros(len(values))
    return values.amax(1)


def _medians(values: torch.Tensor) -> torch.Tensor:
    """Of each row without its NaNs, the mean of the two middle ones; NaN for none."""
    if values.shape[1] == 0:
        return values.new_full((len(values),), torch.nan)
    ordered = values.sort(1).values  # NaNs last
    count = (~values.isnan()).sum(1, keepdim=True)
    low, high = (ordered.gather(1, i.clamp_min(0)) for i in ((count - 1) // 2, count // 2))
    middle = torch.where(low == high, low, (low + high) / 2)
    return torch.where(count > 0, middle, torch.nan)[:, 0]
