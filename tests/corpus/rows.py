"""What a row of the corpus is: a problem, and kernels for it, each right or wrong in one way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from python_inspector import draw

Tensor = torch.Tensor
Call = Callable[..., Any]

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
BOTH = ("f32", "bf16")


@dataclass
class Values:
    """Makes the operands of one call. `kind` is "uniform", from 0 to 1, or one of draw()'s."""

    kind: str
    dtype: torch.dtype
    device: str = "cpu"
    seed: int = 0
    _made: int = field(default=0, init=False)

    def __call__(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        """An operand whose values are of the kind."""
        return self._drawn(self.kind, shape, scale, shift)

    def about_one(self, *shape: int) -> Tensor:
        """A norm's weight."""
        return self._drawn("normal", shape, 0.3, 1.0)

    def weight(self, *shape: int) -> Tensor:
        """A matrix or filter whose product keeps the size of what it is multiplied by."""
        return self._drawn("normal", shape, math.prod(shape[1:]) ** -0.5, 0.0)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """What no benchmark draws from 0 to 1, and no kind makes hard: biases, scores."""
        return self._drawn("normal", shape, scale, 0.0)

    def below(self, most: int, *shape: int) -> Tensor:
        """Whole numbers."""
        made = torch.randint(0, most, shape, generator=self._generator())
        return made.to(self.device)

    def _generator(self) -> torch.Generator:
        self._made += 1
        return torch.Generator().manual_seed(1_000_003 * self._made + self.seed)

    def _drawn(self, kind: str, shape: tuple[int, ...], scale: float, shift: float) -> Tensor:
        if kind == "uniform":
            made = torch.rand(shape, generator=self._generator(), dtype=torch.float64)
            return (made * scale + shift).to(self.dtype).to(self.device)
        self._made += 1
        drawn = draw(shape, self.dtype, kinds=(kind,), scale=scale, device=self.device)
        made = drawn.tensor(self.seed, self._made)
        return made if not shift else (made.double() + shift).to(self.dtype)


@dataclass(frozen=True)
class Problem:
    name: str
    like: Call
    operands: Callable[[Values], tuple[Any, ...]]
    dtypes: tuple[str, ...] = BOTH
    kinds: tuple[str, ...] = ("normal", "outliers", "small", "sparse")
    """Of the operands that check() is given."""
    relative: bool = False
    """Whether rounding is relative to each element: nothing cancels."""
    share: float = 1.0
    """Of the elements that flashinfer-bench wants to match."""
    hard: bool = False
    """Whether its wrong kernels pass on values of these kinds, and need check(hard=True)."""

    def wrong(self, *rows: tuple[Any, ...]) -> Iterator[Kernel]:
        """A row: kind of fault, the fault, the kernel; where it was reported; the only dtype."""
        for fault, says, call, *rest in rows:
            yield Kernel(self, says, call, fault, *rest)

    def right(self, *rows: tuple[str, Call]) -> Iterator[Kernel]:
        """A row: the arithmetic, and the kernel."""
        for says, call in rows:
            yield Kernel(self, says, call)

    def of(self, values: Values) -> tuple[Any, ...]:
        return self.operands(values)


@dataclass(frozen=True)
class Kernel:
    problem: Problem
    says: str
    make: Call
    """The kernel, or a class whose objects are it: those keep something from call to call."""
    fault: str = ""
    """Its kind; a right kernel has none."""
    source: str = ""
    """A public report of the same fault."""
    only: str = ""
    """The dtype in which it is a fault; elsewhere rounding hides it, or it is allowed."""

    @property
    def name(self) -> str:
        return f"{self.problem.name}: {self.says}"

    @property
    def dtypes(self) -> tuple[str, ...]:
        return (self.only,) if self.only else self.problem.dtypes

    def fresh(self) -> Call:
        return self.make() if isinstance(self.make, type) else self.make


def wide(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x if x.dtype == torch.float64 else x.float()


def zeroed(y: Tensor, *place: Any) -> Tensor:
    """With what was not written there as zeros."""
    y = y.clone()
    y[place] = 0
    return y


def swapped(y: Tensor, a: int, b: int, axis: int = -1) -> Tensor:
    order = list(range(y.shape[axis]))
    order[a], order[b] = order[b], order[a]
    return y.index_select(axis, torch.tensor(order, device=y.device))


def positions(x: Tensor, axis: int = -2) -> Tensor:
    return torch.arange(x.shape[axis], device=x.device)
