"""What else simulated kernels do inside where a contract asks for it (format/contract_words.py).

What they show of an output then is its limit. Nothing of it is allowed unasked: it loses what the
reference does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..format.contract_words import TF32, fits
from ..format.recording import DTYPES
from .arithmetic import GROUPED, ROUNDING, U
from .grouped import grouped_product
from .products import ANYWHERE, CUT_OFF, TF32_UNIT, cut_off, in_tf32
from .simulation import NARROW, Change, Noise

Made = Callable[[Change], torch.Tensor]
"""From what is done to each factor to a sum of products."""
PARTS = 8
"""Of a product that is reduced: devices, or what cuBLAS splits along its terms."""

UNITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
_ONE = ROUNDING / 1.5
"""The deviation of a rounding, in units of u."""
_PRODUCTS = {
    "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2),
    "addmv": (1, 2),
} | dict.fromkeys(GROUPED, (0, 1))  # fmt: skip
_SUMS = {
    *_PRODUCTS, "sum", "mean", "cumsum", "convolution", "convolution_backward",
    "embedding_dense_backward",
}  # fmt: skip
_SUMS_OF_ROWS = {
    "native_layer_norm_backward", "_fused_rms_norm_backward", "native_batch_norm_backward",
}  # fmt: skip
"""Whose results are sums over all rows, but for that which has the rows."""


@dataclass(frozen=True)
class Inside:
    """How simulated kernels of one call depart from float32 arithmetic."""

    names: frozenset[str] = frozenset()
    narrow: torch.dtype | None = None
    """The call's 16-bit dtype."""
    products: frozenset[str] = frozenset()
    """Which products of float32 they make in TF32 (products.py)."""
    used: set[str] = field(init=False, default_factory=set, compare=False)
    """The words that changed anything: what the call's contract states."""

    @classmethod
    def of(cls, asked: Iterable[str], operands: Iterable[torch.Tensor]) -> Inside:
        """What of the words that were asked for says something of a call with these operands."""
        dtypes = [t.dtype for t in operands]
        known = {DTYPES[dtype] for dtype in dtypes if dtype in DTYPES}
        names = frozenset(word for word in asked if fits(word, known))
        narrow = next((dtype for dtype in dtypes if dtype in NARROW), None)
        return cls(names, narrow, ANYWHERE if TF32 in names else frozenset())

    def with_products(self, products: frozenset[str]) -> Inside:
        return replace(self, products=products)

    def rounded_operands(self, name: str, stores: torch.dtype) -> tuple[int, ...]:
        """The arguments that this operation rounds to TF32."""
        places = in_tf32(name, stores, self.products)
        if places:
            self.used.add(TF32)
        return places

    def noise(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        exact: torch.Tensor,
        stores: torch.dtype,
        usual: Sequence[Noise],
    ) -> list[Noise]:
        """Of one operation: `usual` is what float32 sums are off by."""
        out: list[Noise] = []
        if self.narrow is None:
            return out
        u = UNITS[self.narrow]
        if self._does("sums-16", _is_sum(name, args, exact) and stores in NARROW):
            out += [Noise(part.scale * (u / U), part.times) for part in usual]
        if name not in _PRODUCTS:
            return out
        a, b = (args[i] for i in _PRODUCTS[name])
        if self._does("p-16", stores not in NARROW):
            out.append(_rounded(lambda change: _product(name, change(a), change(b), kwargs), u))
        if self._does("reduce-16", stores in NARROW):
            partial = torch.maximum(_together(name, a, b, kwargs), exact.abs())
            out.append(Noise(_ONE * u * PARTS**0.5 * partial))
        return out

    @property
    def sees_factors(self) -> bool:
        """Whether it matters if what the code sums are products."""
        return not self.names.isdisjoint(("p-16", TF32))

    def of_factors(self, made: Made, stores: torch.dtype) -> list[Noise]:
        """Of a sum that the code writes as products, which `made` makes of changed factors."""
        out = []
        if self.narrow is not None and self._does("p-16", stores not in NARROW):
            out.append(_rounded(made, UNITS[self.narrow]))
        if self._does(TF32, stores == torch.float32):
            out += [_rounded(made, TF32_UNIT), cut_off(made(lambda factor: factor))]
        return out

    def of_scores(self, scores: torch.Tensor, off: torch.Tensor) -> torch.Tensor:
        """Of a fused attention's scores, which float32 sums have `off`."""
        return off + CUT_OFF * scores.abs() if self.products else off

    def of_results(self, out: torch.Tensor, stores: torch.dtype) -> list[Noise]:
        """What all of a fused attention's output shares."""
        return [cut_off(out)] if self.products and stores == torch.float32 else []

    def of_attention(
        self,
        weights: torch.Tensor,
        v: torch.Tensor,
        off: torch.Tensor,
        stores: torch.dtype,
    ) -> torch.Tensor:
        """Of its output, which float32 sums have `off`; weights as they divide to 1."""
        if self.products and stores == torch.float32:
            off = torch.hypot(off, _ONE * TF32_UNIT * _together("bmm", weights, v, {}))
        if self.narrow is None:
            return off
        u = UNITS[self.narrow]
        if self._does("sums-16", stores in NARROW):
            off = off * (1 + u / U)
        if self._does("p-16", True):
            off = torch.hypot(off, _ONE * u * _together("bmm", weights, v, {}))
        return off

    def _does(self, word: str, applies: bool) -> bool:
        does = applies and word in self.names
        if does:
            self.used.add(word)
        return does


def _is_sum(name: str, args: Sequence[Any], exact: torch.Tensor) -> bool:
    if name in _SUMS_OF_ROWS:
        return exact.shape != args[0].shape
    return name in _SUMS or (name == "index_put" and bool(args[3:] and args[3]))


def _rounded(made: Made, unit: float) -> Noise:
    """Of a sum of products with rounded factors: one is off by as much in all products that it
    is in."""
    exact = made(lambda factor: factor)

    def draw(normal: Change) -> torch.Tensor:
        return made(lambda factor: factor * (1 + _ONE * unit * normal(factor))) - exact

    return Noise(exact, draw=draw)


def _product(
    name: str, a: torch.Tensor, b: torch.Tensor, kwargs: Mapping[str, Any]
) -> torch.Tensor:
    a, b = a.double(), b.double()
    if name in GROUPED:
        return grouped_product(a, b, kwargs.get("offs"))
    return torch.matmul(a, b)


def _together(
    name: str, a: torch.Tensor, b: torch.Tensor, kwargs: Mapping[str, Any]
) -> torch.Tensor:
    """What independent relative errors of all products make of their sum."""
    a, b = a.double().square(), b.double().square()
    if name in GROUPED:
        return grouped_product(a, b, kwargs.get("offs")).sqrt()
    return torch.matmul(a, b).sqrt()
