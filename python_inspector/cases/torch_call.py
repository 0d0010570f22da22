"""What an op of the native table is held to: a call of torch, on operands of some shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """`like` takes the operands, and the params by name."""

    like: Callable[..., Any]
    shapes: tuple[tuple[Shape, ...], ...]
    """Of the operands, a tuple a call."""
    params: tuple[Mapping[str, Any], ...] = ({},)
    """One after the other, a call each."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Of operands that are no floats of any value: `bool`; `ids`, below the first extent of the
    last operand; `places`, below the extent of the first operand along the axis; `rows`, below
    ROWS; `classes`, below the first operand's last extent, or ignored; `outputs`, below the second
    operand's first extent, or ignored; `wide` floats, float32 in
    every dtype; `finite` or `small` floats; those of which `few` or `most` are not 0, or `equal`
    ones are many."""
    sums_products: bool = False
    """Values are huge where their products are, not they themselves."""
    output: str = "out"
    """The name of the only one."""
    calls: Callable[..., Any] | None = None
    """What models call, where `like` is another."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Their names."""
        given = signature(self.like).parameters.values()
        named = [it.name for it in given if it.kind != it.VAR_KEYWORD]
        return tuple(name for name in named if name not in self.params[0])

    @property
    def flags(self) -> tuple[str, ...]:
        """Those of bool."""
        return tuple(name for name, kind in self.kinds.items() if kind == "bool")


ROWS = 11
"""Of a table that ids name, where no operand is one."""


def wide(t: torch.Tensor) -> torch.Tensor:
    """In what sums are: float32, of float64 and of whole numbers that."""
    return t.float() if t.is_floating_point() and t.dtype != torch.float64 else t


def once(like: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
    """In what sums are, and rounded once."""
    return like(*(wide(t) for t in given)).to(given[0].dtype)
