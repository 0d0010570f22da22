"""draw(): operands for check() that are hard for kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import needs

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Draw:
    """Tensors that are made when they are needed: one per seed, of the kinds in turn."""

    shape: tuple[int, ...]
    dtype: Any
    seeds: int
    kinds: tuple[str, ...]
    high: int | None
    device: str
    scale: float

    def kind(self, seed: int) -> str:
        return self.kinds[seed % len(self.kinds)]

    def tensor(self, seed: int, salt: int = 0) -> torch.Tensor:
        """The operand of one seed; `salt` tells several draws of one call apart."""
        import torch

        generator = torch.Generator().manual_seed(1_000_003 * salt + seed)
        if not self.dtype.is_floating_point:
            high = 2 if self.dtype == torch.bool else self.high
            drawn = torch.randint(0, high or 128, self.shape, generator=generator)
            return drawn.to(self.dtype).to(self.device)
        normal = torch.randn(self.shape, generator=generator, dtype=torch.float64)
        made = (KINDS | NAMED_KINDS)[self.kind(seed)](normal * self.scale, torch.finfo(self.dtype))
        return made.to(self.dtype).to(self.device)


def draw(
    shape: Sequence[int],
    dtype: Any = None,
    seeds: int | None = None,
    *,
    kinds: Sequence[str] | None = None,
    high: int | None = None,
    device: str = "cpu",
    scale: float = 1.0,
) -> Draw:
    """Operands for `check(inputs=...)`: `seeds` of them, each of the next kind of hard values; one
    of each kind by default.

    Kinds: "normal"; "outliers", a few channels a hundred times as large; "ties", few significands,
    so that results lie between two 16-bit numbers; "borders", large values beside multiples of 16
    along every axis; "denormals", some below the smallest normal number; "negative", all of them;
    "huge", where squares of sums still fit float32; "sparse", zeros but for one in eight; "small",
    a thousandth, so that an epsilon counts. Where they are named: "equal", one value a row;
    "zeros", in every other row; "inf", a few of them. Normal numbers are multiplied by `scale`
    first. `dtype` is a torch dtype, float32 by default; integers are drawn below `high` (128).
    """
    needs.require("draw()", "torch")
    import torch

    chosen = tuple(KINDS) if kinds is None else tuple(kinds)
    known = KINDS | NAMED_KINDS
    if unknown := [kind for kind in chosen if kind not in known]:
        raise ValueError(f"draw: unknown kind {unknown[0]!r}; known are {', '.join(known)}")
    seeds = len(chosen) if seeds is None else seeds
    if seeds < 1 or not chosen:
        raise ValueError(f"draw: {seeds} seeds of {len(chosen)} kinds draw nothing")
    if any(extent < 1 for extent in shape):
        raise ValueError(f"draw: shape {tuple(shape)} is empty")
    kind = torch.float32 if dtype is None else dtype
    return Draw(tuple(shape), kind, seeds, chosen, high, device, scale)


def _normal(x: Any, info: Any) -> Any:
    return x


def _outliers(x: Any, info: Any) -> Any:
    x[..., :: max(2, x.shape[-1] // 3)] *= 100
    return x


def _ties(x: Any, info: Any) -> Any:
    return (x * 4).round() / 4


def _borders(x: Any, info: Any) -> Any:
    for axis in range(x.ndim):
        for at in range(x.shape[axis]):
            if at % 16 in (0, 15):
                x.select(axis, at).mul_(3)
    return x


def _denormals(x: Any, info: Any) -> Any:
    x[..., 1::2] *= info.smallest_normal / 4
    return x


def _negative(x: Any, info: Any) -> Any:
    return -x.abs()


def _huge(x: Any, info: Any) -> Any:
    return x * (info.max / 128 if info.bits == 16 and info.max < 1e6 else _square_root(x, info))


def _square_root(x: Any, info: Any) -> float:
    return math.sqrt(info.max) / (64 * max(1, x.shape[-1]))


def _sparse(x: Any, info: Any) -> Any:
    flat = x.reshape(-1)
    kept = flat[::8].clone()
    flat.zero_()[::8] = kept
    return flat.reshape(x.shape)


def _small(x: Any, info: Any) -> Any:
    return x / 1024


def _equal(x: Any, info: Any) -> Any:
    return x[..., :1].expand(x.shape).clone()


def _zeros(x: Any, info: Any) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    rows[::2] = 0
    return rows.reshape(x.shape)


def _infinite(x: Any, info: Any) -> Any:
    flat = x.reshape(-1)
    flat[:: max(2, flat.numel() // 3)] *= math.inf
    return flat.reshape(x.shape)


KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "normal": _normal,
    "outliers": _outliers,
    "ties": _ties,
    "borders": _borders,
    "denormals": _denormals,
    "negative": _negative,
    "huge": _huge,
    "sparse": _sparse,
    "small": _small,
}
NAMED_KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": _equal,
    "zeros": _zeros,
    "inf": _infinite,
}
"""Those that many functions say nothing of, and that are drawn where they are asked for."""
