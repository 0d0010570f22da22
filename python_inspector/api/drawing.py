"""draw(): operands for check() that are hard for kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import needs
from .extents import Range, sizes_of
from .kinds import KINDS, NAMED_KINDS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Draw:
    """Tensors that are made when they are needed: one per seed, of one kind after the other."""

    shape: tuple[int | str, ...]
    dtype: Any
    seeds: tuple[int, ...]
    kinds: tuple[str, ...]
    high: int | str | None
    device: str
    scale: float
    ranges: Mapping[str, Range]
    """Of the extents that have names."""

    def kind(self, seed: int) -> str:
        return self.kinds[seed % len(self.kinds)]

    @property
    def names(self) -> set[str]:
        """Of extents, the range of integers among them."""
        return {it for it in (*self.shape, self.high) if isinstance(it, str)}

    def tensor(
        self,
        seed: int,
        salt: int = 0,
        sizes: Mapping[str, int] | None = None,
        kind: str | None = None,
    ) -> torch.Tensor:
        """The operand of one seed; `salt` tells several draws of one call apart. `sizes` are those
        of named extents, by default this draw's own; `kind` another one than the seed's."""
        import torch

        sizes = sizes_of(self.ranges, seed, salt) if sizes is None else sizes
        shape = [sizes[it] if isinstance(it, str) else it for it in self.shape]
        generator = torch.Generator().manual_seed(1_000_003 * salt + seed)
        if not self.dtype.is_floating_point:
            high = sizes[self.high] if isinstance(self.high, str) else self.high
            high = 2 if self.dtype == torch.bool else high
            drawn = torch.randint(0, high or 128, shape, generator=generator)
            return drawn.to(self.dtype).to(self.device)
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        change = (KINDS | NAMED_KINDS)[kind or self.kind(seed)]
        made = change(normal * self.scale, torch.finfo(self.dtype))
        return made.to(self.dtype).to(self.device)


def draw(
    shape: Sequence[int | str],
    dtype: Any = None,
    seeds: int | Sequence[int] | None = None,
    *,
    kinds: Sequence[str] | None = None,
    high: int | str | None = None,
    device: str = "cpu",
    scale: float = 1.0,
    **extents: Range,
) -> Draw:
    """Operands for `check(inputs=...)`: `seeds` of them, each of the next kind of hard values; one
    of each kind by default. A list of seeds draws those again that a verdict names.

    Kinds: "normal"; "outliers", a few channels a hundred times as large; "ties", few significands,
    so that results are between two 16-bit numbers; "borders", large values next to multiples of 16
    along every axis; "denormals", some below the smallest normal number; "negative", all of them;
    "huge", where squares of sums still fit float32; "sparse", zeros but for one in eight; "small",
    a thousandth, so that an epsilon counts. Where they are named: "equal", one value a row;
    "zeros", in every other row; "inf", a few of them. Normal numbers are multiplied by `scale`
    first. `dtype` is a torch dtype, float32 by default; integers are drawn below `high` (128).

    An extent may be a name with a range, both ends included: `draw(("B", "T", 64), B=(1, 5),
    T=(1, 200))`. A name has one size in all draws of a call, and needs its range once; most sizes
    are at borders of tiles (15 to 17, 31 to 33, ... 127 to 129) or at an end. `high` may be a name.
    """
    needs.require("draw()", "torch")
    import torch

    chosen = tuple(KINDS) if kinds is None else tuple(kinds)
    known = KINDS | NAMED_KINDS
    if unknown := [kind for kind in chosen if kind not in known]:
        raise ValueError(f"draw: unknown kind {unknown[0]!r}; known are {', '.join(known)}")
    seeds = len(chosen) if seeds is None else seeds
    own = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not own or not chosen:
        raise ValueError(f"draw: {len(own)} seeds of {len(chosen)} kinds draw nothing")
    if any(isinstance(extent, int) and extent < 1 for extent in shape):
        raise ValueError(f"draw: shape {tuple(shape)} is empty")
    for name, (low, most) in extents.items():
        if not 1 <= low <= most:
            raise ValueError(f"draw: {name}=({low}, {most}) is no range of sizes from 1 up")
    if unused := sorted(extents.keys() - {*shape, high}):
        raise ValueError(f"draw: shape {tuple(shape)} has no {unused[0]}, which has a range")
    kind = torch.float32 if dtype is None else dtype
    return Draw(tuple(shape), kind, own, chosen, high, device, scale, extents)
