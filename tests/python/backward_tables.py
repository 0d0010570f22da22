"""Tables of hand-written backward kernels: right ones, written another way than autograd has them,
and the faults that ports of them have.

A kernel is a forward with a backward: `backward(xs, gs)` gets operands and cotangents, and
recomputes what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Tensor = torch.Tensor
Function = Callable[..., Any]
Backward = Callable[[Sequence[Tensor], Tensor], Sequence[Tensor | None]]


@dataclass(frozen=True)
class Sizes:
    """Of all operands; what is checked last has others than rules were made on."""

    tokens: int = 24
    width: int = 64
    heads: int = 4
    head_dim: int = 16
    window: int = 8
    cap: float = 5.0
    seed: int = 0


@dataclass(frozen=True)
class Table:
    """Kernels of one reference. Those in `unseen` are wrong, and 16 bits do not show it."""

    like: Function
    operands: tuple[Any, ...]
    right: Mapping[str, Function]
    wrong: Mapping[str, Function]
    unseen: frozenset[str] = field(default_factory=frozenset)


def kernel(forward: Function, backward: Backward) -> Function:
    """As autograd goes back through it; gradients are rounded to what their operands are stored
    in."""

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *xs: Any) -> Any:
            ctx.xs = xs
            return forward(*xs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            made = list(backward(ctx.xs, g))
            made += [None] * (len(ctx.xs) - len(made))
            return tuple(
                None if d is None else d.to(x.dtype) for d, x in zip(made, ctx.xs, strict=True)
            )

    return Kernel.apply


class Dice:
    def __init__(self, sizes: Sizes, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(sizes.seed)
        self._dtype = dtype

    def __call__(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        made = torch.randn(shape, generator=self._generator) * scale + shift
        return made.to(self._dtype)

    def ids(self, most: int, *shape: int) -> Tensor:
        return torch.randint(0, most, shape, generator=self._generator)


def in_chunks(terms: Callable[[slice], Tensor], count: int, chunks: int, dtype: Any) -> Tensor:
    """A sum over tokens whose parts are added in `dtype`."""
    step = max(1, count // chunks)
    total: Tensor | None = None
    for start in range(0, count, step):
        part = terms(slice(start, start + step)).to(dtype)
        total = part if total is None else (total + part).to(dtype)
    assert total is not None
    return total
