"""The rows of a call's operands: which tensors have them, and the same call with other rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UsageError
from ..recorder.one_call import Arguments
from ..taps.generic import tensors_of
from ..trace.copies import Copies
from .ragged import Sequences, in_tokens, sequences_of
from .relations import OF_A_DEVICE, WHOLE, Asked, Batch, Variation, variations

_ALIGNMENT = 64
_SMALL = 1 << 22
"""Elements of an operand."""


@dataclass(frozen=True)
class Rows:
    """Which operands have rows, and along which axis. `why`: why there are none."""

    axes: Mapping[str, int]
    count: int = 0
    most: int = 0
    """How many would still be small tensors."""
    floats: bool = False
    without: frozenset[str] = frozenset()
    """Operands that have none."""
    why: str = ""
    sequences: Sequences | None = None
    """Where these are the rows: tensors hold their tokens one after the other."""

    def __str__(self) -> str:
        of = ", ".join(f"{name} (axis {axis})" for name, axis in self.axes.items())
        return f"the sequences in {of}" if self.sequences else of

    def along(self, extent: int, variation: Variation) -> Variation:
        """A variation of these rows as one of the places along an axis of this extent."""
        offsets = self.sequences and self.sequences.of.get(extent)
        return in_tokens(variation, offsets) if offsets else variation

    def of(self, output: str, shape: Sequence[int], batch: Batch) -> int | None:
        """The axis of an output that has these rows; None where none does."""
        operand = output.removesuffix("_after")
        if output != operand and (operand in self.axes or operand in self.without):
            return self.axes.get(operand)
        if self.sequences and not isinstance(batch, Mapping):
            have = [n in (self.count, *self.sequences.of) for n in shape]
            return have.index(True) if True in have else None
        axis = next(iter(self.axes.values()), 0)
        if isinstance(batch, Mapping) and output in batch:
            axis = batch[output] % len(shape)
        counts = (self.count, *(self.sequences.of if self.sequences else ()))
        return axis if self.axes and len(shape) > axis and shape[axis] in counts else None

    def planned(self, asked: Asked, *, on_device: Collection[str]) -> list[Variation]:
        """All further calls, in their order; of those that need an accelerator these."""
        return [
            it
            for relation in asked.demands
            if relation not in OF_A_DEVICE or relation in on_device
            if relation != "ragged" or self.sequences
            for it in variations(relation, self.count, most=self.most, floats=self.floats)
            if self.axes or relation in WHOLE
        ]


def rows_of(arguments: Mapping[str, Any], batch: Batch) -> Rows:
    """The rows of all tensors that have the extent of the first floating one along an axis, the
    leading one or `batch`; or of those that `batch` names. Where an operand has offsets along that
    axis the rows are sequences."""
    tensors = {
        name: t
        for name, t in tensors_of(arguments, lambda value: value).items()
        if t.layout is torch.strided
    }
    if found := _of_sequences(tensors, batch):
        return found
    axes = _named(tensors, batch) if isinstance(batch, Mapping) else _shared(tensors, batch)
    if not axes:
        return Rows({}, why=f"no operand has an axis {batch or 0}" if tensors else "no operand")
    counts = {name: tensors[name].shape[axis] for name, axis in axes.items()}
    count = next(iter(counts.values()))
    for name, own in counts.items():
        if own != count:
            raise UsageError(
                f"[batch] {name} has {own} rows along axis {axes[name]}, {next(iter(counts))} has "
                f"{count}: the axes that batch= names must have the same extent"
            )
    return _rows(tensors, axes, count)


def _rows(
    tensors: Mapping[str, torch.Tensor],
    axes: Mapping[str, int],
    count: int,
    sequences: Sequences | None = None,
) -> Rows:
    most = _SMALL // max(1, *(tensors[name].numel() // count for name in axes))
    floats = any(tensors[name].is_floating_point() for name in axes)
    without = frozenset(tensors.keys() - axes.keys())
    return Rows(axes, count, most, floats, without, sequences=sequences)


def _of_sequences(tensors: Mapping[str, torch.Tensor], batch: Batch) -> Rows | None:
    """Tensors with all tokens, and those with an entry for each sequence: along the leading axis
    where `batch` does not name it."""
    if isinstance(batch, Mapping):
        axes = _named(tensors, batch)
    else:
        axes = {name: batch or 0 for name, t in tensors.items() if t.ndim > (batch or 0) >= 0}
    extents = {name: tensors[name].shape[axis] for name, axis in axes.items()}
    floats = [n for name, n in extents.items() if tensors[name].is_floating_point()]
    found = sequences_of(tensors, set(extents.values()))
    if found is None or (floats and floats[0] not in found.of):
        return None
    packed = {name: axis for name, axis in axes.items() if extents[name] in found.of}
    if not isinstance(batch, Mapping):
        axes = {name: 0 for name, t in tensors.items() if t.ndim}
    single = {
        name: axis
        for name, axis in axes.items()
        if name not in packed and name not in found.given
        and tensors[name].shape[axis] == found.count
    }  # fmt: skip
    return _rows(tensors, packed | single, found.count, found)


def _named(tensors: Mapping[str, torch.Tensor], batch: Mapping[str, int]) -> dict[str, int]:
    """Axes of operands that are named, or inside of what is named; other names are of outputs."""
    found = {}
    for name, t in tensors.items():
        given = [key for key in batch if name == key or name.startswith(f"{key}.")]
        if given:
            axis = batch[max(given, key=len)]
            if not -t.ndim <= axis < t.ndim:
                raise UsageError(f"[batch] {name} is {list(t.shape)}: it has no axis {axis}")
            found[name] = axis % t.ndim
    if not found:
        raise UsageError(
            f"[batch] {', '.join(batch) or 'nothing'} is named, which is no operand; operands are "
            f"{', '.join(tensors) or 'none'}"
        )
    return found


def _shared(tensors: Mapping[str, torch.Tensor], batch: int | None) -> dict[str, int]:
    axis = batch or 0
    if axis < 0:
        raise UsageError(f"[batch] the axis is {axis}, expected 0 or more; name operands otherwise")
    have = {name: t for name, t in tensors.items() if t.ndim > axis}
    floats = [name for name, t in have.items() if t.is_floating_point()]
    if not have:
        return {}
    first = (floats or list(have))[0]
    shape = have[first].shape
    found = {name: axis for name, t in have.items() if t.shape[axis] == shape[axis]}
    if batch is None and len(found) > 1 and list(shape).count(shape[axis]) > 1 < shape[axis]:
        shown = ", ".join(f"{name} is {list(have[name].shape)}" for name in found)
        raise UsageError(
            f"[batch] {shown}: sizes do not show which of them have rows; say batch=0 for all, or "
            f"batch={{{first!r}: 0}}"
        )
    return found


def varied(
    arguments: Arguments, bound: Mapping[str, Any], rows: Rows, variation: Variation
) -> tuple[Arguments, dict[str, Any]]:
    """The arguments of the varied call, as they are given and by name."""
    if not variation.source:
        return arguments, dict(bound)
    tensors = tensors_of(bound, lambda value: value)
    axes = {id(tensors[name]): axis for name, axis in rows.axes.items()}
    copies = _WithRows(axes, rows, variation)
    args, kwargs = arguments
    given = tuple(map(copies.of, args)), {name: copies.of(it) for name, it in kwargs.items()}
    return given, {name: copies.of(it) for name, it in bound.items()}


class _WithRows(Copies):
    """Copies of containers, with other rows in the tensors that have some."""

    def __init__(self, axes: Mapping[int, int], rows: Rows, variation: Variation) -> None:
        super().__init__(None, {}, {}, lazy=False)
        self._axes, self._rows, self._variation = axes, rows, variation

    def of(self, value: Any, name: str = "") -> Any:
        if type(value) is int and self._rows.sequences:
            return self._rows.sequences.number_after(value, self._variation)
        if not isinstance(value, torch.Tensor):
            return super().of(value, name)
        if id(value) not in self.memo:
            self.memo[id(value)] = value, self._made(value)
        return self.memo[id(value)][1]

    def _made(self, value: torch.Tensor) -> torch.Tensor:
        sequences = self._rows.sequences
        made = sequences.tensor_after(value, self._variation) if sequences else None
        axis = self._axes.get(id(value))
        if made is not None or axis is None:
            return value if made is None else made
        with torch.no_grad():
            variation = self._rows.along(value.shape[axis], self._variation)
            made = _with_rows(value.detach(), axis, variation)
        return made.requires_grad_(value.requires_grad)


def _with_rows(value: torch.Tensor, axis: int, variation: Variation) -> torch.Tensor:
    source = torch.tensor(variation.source, dtype=torch.long, device=value.device)
    made = _laid_out_as(value, axis, len(variation.source))
    made.copy_(value.index_select(axis, source))
    others = sorted(set(range(len(source))) - set(variation.judged))
    if variation.fill and (value.is_floating_point() or value.is_complex()):
        filling = torch.tensor(FILLS[variation.fill](value.dtype), dtype=torch.float64)
        for place in others:
            made.select(axis, place).copy_(filling.to(value.dtype))
    return made


FILLS: dict[str, Callable[[torch.dtype], float]] = {
    "nan": lambda _: float("nan"),
    "inf": lambda _: float("inf"),
    "huge": lambda dtype: torch.finfo(dtype).max,
    "zero": lambda _: 0.0,
}


def _laid_out_as(value: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    """Room for so many rows, with strides and alignment like those of `value`: kernels choose
    instructions by them, and other ones would be no fault of a relation."""
    shape = [count if i == axis else extent for i, extent in enumerate(value.shape)]
    strides = value.stride()
    if strides[axis] != max(strides) or 0 in strides:
        order = sorted(range(value.ndim), key=lambda i: (-strides[i], i))
        return torch.empty_permuted(shape, order, dtype=value.dtype, device=value.device)
    aside = value.data_ptr() % _ALIGNMENT // value.element_size()
    items = aside + 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    flat = torch.zeros(items, dtype=value.dtype, device=value.device)
    return flat.as_strided(shape, strides, aside)
