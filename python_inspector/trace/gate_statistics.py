"""The statistics that harness gates are about, of many outputs at once, against the oracle.

The same definitions as harness/statistics.h, reference_scales.h, layout.h and sample_gates.h; a
test holds both to each other. `y` are the outputs [k, *shape] of k kernels, every figure comes back
as [k] in float64. Everything may have leading dimensions: [..., *shape] oracles of one layout and
[..., k, *shape] outputs give figures [..., k].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..format.host_copy import is_host

SMALLEST_GROUP = 8
"""Smaller groups are left out."""
SMALLEST_SCALE = 2.0**-10
"""Of a group or row, relative to the median one."""
MEDIAN_TO_SIGMA = 0.6745
TILE = 8
_SPARSE_TILE = 64
"""Columns of a tile where only some rows are there."""
NOISE, UNIT32 = 8.0, 2.0**-24
_SMALLEST, _LARGEST = 2.0**-40, 2.0**40
"""Scales of elements whose errors, squared, float32 has room for."""

Figures = dict[str, torch.Tensor]


@dataclass
class _Family:
    """The groups of a family: their sizes, 0 for those that do not count, and what errors are
    measured in."""

    sizes: torch.Tensor
    scales: torch.Tensor
    all_count: bool


@dataclass(frozen=True)
class Layout:
    """An output with named axes as rows (batch, token) x columns (all other axes in order)."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    order: tuple[int, ...]
    batch: int
    tokens: tuple[int, ...]
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
        return self.arranged(t).double()

    def arranged(self, t: torch.Tensor) -> torch.Tensor:
        """The same in its own dtype."""
        extra = t.ndim - len(self.order)
        order = [*range(extra), *(axis + extra for axis in self.order)]
        return t.permute(order).reshape(*t.shape[:extra], self.rows, self.columns)

    def restored(self, matrix: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """[rows, columns] in the shape of the output."""
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return matrix.reshape([shape[axis] for axis in self.order]).permute(back)

    @property
    def rows(self) -> int:
        return self.batch * len(self.tokens)

    @property
    def tile_width(self) -> int:
        """Columns of a tile."""
        return TILE if self.whole else _SPARSE_TILE

    def tile_sums(self, x: torch.Tensor) -> torch.Tensor:
        """[..., rows, tiles across], the sums of rows, summed over tiles of 8 tokens of one batch
        entry; where some are missing, of those that are there."""
        leading, across = x.shape[:-2], x.shape[-1]
        at, tiles = _tiles(self.tokens, x.device)
        x = x.reshape(*leading, self.batch, len(self.tokens), across)
        out = x.new_zeros(*leading, self.batch, tiles, across)
        return out.index_add_(out.ndim - 2, at, x).flatten(-3)


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
        shape=tuple(shape),
        axes=tuple(axes),
        order=(*first, *rest),
        batch=1 if batch is None else shape[batch],
        tokens=tuple(range(tokens) if chosen is None else chosen),
        whole=chosen is None,
        has_rows=token is not None,
        has_columns=bool(rest),
        columns=math.prod(shape[axis] for axis in rest),
        head=split,
    )


class Scales:
    """What the statistics need of the oracle, computed once for all outputs."""

    def __init__(
        self,
        layout: Layout,
        o: torch.Tensor,
        valid: torch.Tensor | None = None,
        *,
        storage: torch.dtype,
    ) -> None:
        """`o` is [..., *shape], `valid` has the same shape, outputs are stored as `storage`."""
        self.layout = layout
        self.storage = storage
        self.smallest = torch.finfo(storage).smallest_normal
        """No size is less: below it the steps of the storage are constant."""
        self.o = layout.matrix(o)
        self.usable = self.o.isfinite()
        if valid is not None:
            self.usable &= layout.matrix(valid) != 0
        self.all_usable = bool(self.usable.all())
        self.known = self.o if self.all_usable else torch.where(self.usable, self.o, 0.0)
        sizes = self.known.abs()
        self.whole = self._whole(squares := self.known.square())
        self.rows = self._row_scales(sizes)
        self.element = torch.maximum(sizes, self.rows[..., None])
        self._families = {name: self._family(name, squares) for name in family_names(layout)}
        self._positive = self._find_positive()

    def _whole(self, squares: torch.Tensor) -> torch.Tensor:
        """sum o^2, of each element at least what its size may be."""
        sums, least = squares.sum((-2, -1)), self.smallest**2
        if self.all_usable:
            return sums.clamp_min(self.layout.rows * self.layout.columns * least)
        return torch.maximum(sums, self.usable.sum((-2, -1)) * least)

    def _row_scales(self, magnitudes: torch.Tensor) -> torch.Tensor:
        if not self.all_usable:
            magnitudes = torch.where(self.usable, magnitudes, torch.nan)
        rows = medians(magnitudes, complete=self.all_usable) / MEDIAN_TO_SIGMA
        complete = self.all_usable and self.layout.columns > 0
        return _not_too_small(rows, complete=complete).clamp_min(self.smallest)

    def _family(self, name: str, squares: torch.Tensor) -> _Family:
        if self.all_usable:
            sizes, all_count = counted_sizes(name, self.layout, self.o.device)
        else:
            sizes, all_count = _counted(group_sums(self.usable.double(), name, self.layout)), False
        sums = group_sums(squares, name, self.layout)
        if all_count:
            rms = _not_too_small((sums / sizes).sqrt(), complete=True)
            return _Family(sizes, rms.clamp_min(self.smallest), True)
        scales = torch.where(sizes > 0, (sums / sizes).sqrt(), torch.nan)
        scales = _not_too_small(scales).clamp_min(self.smallest)
        return _Family(sizes, scales, False)

    def _find_positive(self) -> dict[str, bool]:
        """Which divisors have no zeros: none has one where all elements count, and the square of
        the smallest size is no zero. Asked of the device at once."""
        divisors = {"tensor": self.whole, "element": self.element}
        divisors |= {name: family.scales for name, family in self._families.items()}
        if self.all_usable and self.o.numel() and self.smallest**2 > 0:
            return dict.fromkeys(divisors, True)
        flags = torch.stack([(divisor > 0).all() for divisor in divisors.values()]).tolist()
        return dict(zip(divisors, flags, strict=True))

    @functools.cached_property
    def count(self) -> int:
        """Usable elements of one oracle."""
        return self.o.numel() if self.all_usable else int(self.usable.sum())

    @functools.cached_property
    def count_of_rows(self) -> int:
        """Its rows with such elements."""
        return self.layout.rows if self.all_usable else int(self.usable.any(1).sum())

    @functools.cached_property
    def is_constant(self) -> bool:
        """Whether all usable elements of one oracle are the same."""
        known = self.o.flatten() if self.all_usable else self.o[self.usable]
        return bool((known == known[:1]).all())

    @property
    def is_usual(self) -> bool:
        """Whether one oracle is all numbers, not all alike, and none denormal."""
        if not self.all_usable or self.is_constant:
            return False
        sizes = self.o.abs()
        return bool(((sizes >= self.smallest) | (sizes == 0)).all())

    @functools.cached_property
    def fit_float32(self) -> bool:
        """Whether all elements count, and errors and their squares can be float32."""
        if not self.all_usable or not all(self._positive.values()) or not self.o.numel():
            return False
        return bool(((self.element > _SMALLEST) & (self.element < _LARGEST)).all())

    def statistics(self, y: torch.Tensor) -> Figures:
        """E_T as `tensor`, M_A by the names of its families, M_E as `element`, g as `gain`."""
        off = self.off(y)
        squares, whole = off.square(), self.whole[..., None]
        figures = {"tensor": self.quotient(squares.sum((-2, -1)), whole, "tensor").sqrt()}
        for name in self._families:
            figures[name] = self.largest_error(group_sums(squares, name, self.layout), name)
        products = (off * self.known[..., None, :, :]).sum((-2, -1))
        errors = self.quotient(off.abs_(), self.element[..., None, :, :], "element")
        figures["element"] = _largest(errors.flatten(-2))
        figures["gain"] = self.quotient(products, whole, "tensor")
        return figures

    def off(self, y: torch.Tensor) -> torch.Tensor:
        """[..., k, rows, columns]: how far outputs are from the oracle, 0 where none counts."""
        off = self.layout.arranged(y) - self.o[..., None, :, :]
        return off if self.all_usable else torch.where(self.usable[..., None, :, :], off, 0.0)

    def quotient(self, a: torch.Tensor, b: torch.Tensor, name: str) -> torch.Tensor:
        return a / b if self._positive[name] else _quotient(a, b)

    def families(self) -> list[str]:
        return list(self._families)

    def largest_error(self, sums: torch.Tensor, name: str) -> torch.Tensor:
        """M_A from the sums of squares of a family's groups."""
        family = self._families[name]
        return _largest(
            self._errors(sums, family.sizes[..., None, :], family.scales[..., None, :], name)
        )

    def group_sizes(self, family: str) -> torch.Tensor:
        """Usable elements of each group, 0 for groups that do not count."""
        return self._families[family].sizes

    def group_errors(self, sums: torch.Tensor, name: str) -> torch.Tensor:
        """v_g of every group of a family, from sums of squares of one output; 0 for groups that do
        not count."""
        family = self._families[name]
        return self._errors(sums, family.sizes, family.scales, name)

    def _errors(
        self, sums: torch.Tensor, sizes: torch.Tensor, scales: torch.Tensor, name: str
    ) -> torch.Tensor:
        errors = self.quotient((sums / sizes).sqrt(), scales, name)
        return errors if self._families[name].all_count else torch.where(sizes > 0, errors, 0.0)

    def differing(self, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        """How many valid elements of each output are not those of m [..., 1, *shape]; -0 equals 0,
        NaN equals NaN."""
        return self._other(self.layout.arranged(y), self.layout.arranged(m)).sum((-2, -1)).double()

    def noise(self, m: torch.Tensor) -> torch.Tensor:
        """Of m [..., 1, *shape], what its elements may be off by where float32 sums cancel."""
        return noise_of(self.layout.arranged(m), self.usable[..., None, :, :])

    def bits(self, y: torch.Tensor, m: torch.Tensor, noise: torch.Tensor) -> Figures:
        """How many elements are not those of m, which has this noise, of all as `bits` and the most
        of one channel as `channel bits`; as `ulp` how far one of them is off."""
        y, m = self.layout.arranged(y), self.layout.arranged(m)
        other = self._other(y, m)
        channels = other.sum(-2).double()
        figures = {"bits": channels.sum(-1), "channel bits": _largest(channels)}
        at = other.flatten(0, -3).nonzero(as_tuple=True)
        noise = noise.flatten()
        of = at[0] // other.shape[-3]  # the outputs, whose samples these are
        off = distances(y.flatten(0, -3)[at], m.flatten(0, -3)[of, at[1], at[2]], noise[of])
        furthest = off.new_zeros(channels[..., 0].numel())
        furthest.scatter_reduce_(0, at[0], off, "amax")
        return figures | {"ulp": furthest.reshape(other.shape[:-2])}

    def _other(self, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        other = y != m
        missing = m.isnan()
        if bool(missing.any()):  # y itself need not be read twice for that, most often
            other &= ~(y.isnan() & missing)
        if not self.all_usable:
            other &= self.usable[..., None, :, :]
        return other


def noise_of(m: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """What float32 is off by where values of ordinary size are added: of [..., rows, columns]."""
    sizes = torch.where(valid & m.isfinite(), m.double().abs(), torch.inf).flatten(-2)
    known = sizes.isfinite().sum(-1)
    if known.numel() == 1:
        middle = ranked(sizes, min(int(known) // 2, sizes.shape[-1] - 1))
    else:
        at = (known // 2).clamp_max(sizes.shape[-1] - 1)
        middle = sizes.sort(-1).values.gather(-1, at[..., None])[..., 0]
    return NOISE * UNIT32 * torch.where(known > 0, middle, 0.0)


def ranked(values: torch.Tensor, place: int) -> torch.Tensor:
    """Of each row the value at this place in ascending order, from 0. A host finds it without
    sorting, which takes several times as long."""
    if is_host(values.device):
        return torch.from_numpy(np.partition(values.detach().numpy(), place)[..., place])
    return values.sort(-1).values[..., place]


def _middles(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row without NaN the two in the middle, or twice the one."""
    length = values.shape[-1]
    if not is_host(values.device):
        ordered = values.sort(-1).values
        return ordered[..., (length - 1) // 2], ordered[..., length // 2]
    parts = np.partition(values.detach().numpy(), length // 2)
    second = parts[..., length // 2]
    first = second if length % 2 else parts[..., : length // 2].max(-1)
    return torch.from_numpy(np.asarray(first)), torch.from_numpy(np.asarray(second))


def distances(y: torch.Tensor, m: torch.Tensor, noise: torch.Tensor | float) -> torch.Tensor:
    """How far elements are off, less the noise, in 2 u of m's: 0 for what is not finite."""
    format = torch.finfo(m.dtype)
    off = ((y.double() - m.double()).abs() - noise).clamp_min(0)
    steps = off / (format.eps * m.double().abs().clamp_min(format.smallest_normal))
    return torch.where(y.isfinite() & m.isfinite(), steps, 0.0)


def family_names(layout: Layout) -> list[str]:
    names = ["token"] if layout.has_rows else []
    names += ["token x head"] if layout.has_rows and layout.head is not None else []
    names += ["channel"] if layout.has_columns else []
    return names + (["tile"] if layout.has_rows and layout.has_columns else [])


def group_sums(x: torch.Tensor, family: str, layout: Layout) -> torch.Tensor:
    """[..., rows, columns] summed over the groups of a family: [..., groups]."""
    if family == "token":
        return x.sum(-1)
    if family == "channel":
        return x.sum(-2)
    if family == "token x head":
        assert layout.head is not None
        return x.reshape(*x.shape[:-1], *layout.head).sum((-3, -1)).flatten(-2)
    return _tile_sums(x, layout)


def _tile_sums(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    width = layout.tile_width
    across = -(-layout.columns // width)
    if missing := across * width - layout.columns:
        x = torch.nn.functional.pad(x, (0, missing))
    return layout.tile_sums(x.reshape(*x.shape[:-2], layout.rows, across, width).sum(-1))


@functools.lru_cache(maxsize=64)
def _tiles(tokens: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, int]:
    """Of each token the place of its tile, and how many tiles there are."""
    tiles = sorted({token // TILE for token in tokens})
    places = {tile: place for place, tile in enumerate(tiles)}
    return torch.tensor([places[token // TILE] for token in tokens], device=device), len(tiles)


@functools.lru_cache(maxsize=64)
def counted_sizes(name: str, layout: Layout, device: torch.device) -> tuple[torch.Tensor, bool]:
    """Of the groups where every element is usable, 0 of those that do not count, and whether all
    do."""
    ones = torch.ones(layout.rows, layout.columns, dtype=torch.float64, device=device)
    sizes = _counted(group_sums(ones, name, layout))
    return sizes, bool((sizes > 0).all())


def _counted(sizes: torch.Tensor) -> torch.Tensor:
    return torch.where(sizes >= SMALLEST_GROUP, sizes, 0.0)


def _not_too_small(scales: torch.Tensor, *, complete: bool = False) -> torch.Tensor:
    """At least a share of their median; 0 for NaN. `complete`: there is none."""
    smallest = SMALLEST_SCALE * medians(scales, complete=complete)[..., None]
    if not complete:
        scales, smallest = scales.nan_to_num(0.0), smallest.nan_to_num(0.0, posinf=torch.inf)
    return torch.maximum(scales, smallest)


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
    if values.shape[-1] == 0:
        return values.new_zeros(values.shape[:-1])
    return values.amax(-1)


def medians(values: torch.Tensor, *, complete: bool = False) -> torch.Tensor:
    """Of each row without its NaNs, the mean of the two middle ones; NaN for none. `complete`:
    there are no NaNs."""
    length = values.shape[-1]
    if length == 0:
        return values.new_full(values.shape[:-1], torch.nan)
    if complete:
        first, second = _middles(values)
        return first if length % 2 else (first + second) / 2
    ordered = values.sort(-1).values  # NaNs last
    count = (~values.isnan()).sum(-1, keepdim=True)
    low, high = (ordered.gather(-1, i.clamp_min(0)) for i in ((count - 1) // 2, count // 2))
    middle = torch.where(low == high, low, (low + high) / 2)
    return torch.where(count > 0, middle, torch.nan)[..., 0]
