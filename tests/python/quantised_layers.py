"""Linear layers of quantised weights of every format, and a model that has one of each."""

from __future__ import annotations

from typing import Any

import torch

from python_inspector.cases.quantised_ops import Size, weight
from python_inspector.quantised import FORMATS, linear, names_of
from python_inspector.quantised.ggml import BLOCKS

SIZE = Size(rows=24, columns=64, group=(8, 32), blocks=2)


class QuantLinear(torch.nn.Module):
    """A layer of a format, with the tensors that files of it have, by their names there. Its weight
    is rounded to the dtype of x where `recipe` says so."""

    def __init__(
        self, layout: str, dtype: torch.dtype, size: Size = SIZE, recipe: str = "float32"
    ) -> None:
        super().__init__()
        engine = torch.Generator().manual_seed(FORMATS.index(layout))
        drawn, group = weight(layout, dtype, engine, size)
        self.tensors = names_of(layout)
        for name, t in zip(self.tensors, drawn.values(), strict=True):
            self.register_buffer(name, t)
        self.out_features = len(drawn["codes"]) if layout in BLOCKS else size.rows
        self.bias = torch.nn.Parameter(torch.randn(self.out_features, generator=engine).to(dtype))
        self.like = linear(layout, recipe, group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.like(x, *(getattr(self, name) for name in self.tensors)) + self.bias


class Layers(torch.nn.Module):
    """A layer of each format. x [1, token, columns], of which each takes what it needs."""

    def __init__(self, dtype: torch.dtype, recipe: str = "float32") -> None:
        super().__init__()
        self.of = torch.nn.ModuleDict(
            {name: QuantLinear(name, dtype, recipe=recipe) for name in FORMATS}
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x[..., : _columns(name)]) for name, layer in self.of.items()]


def _columns(name: str) -> int:
    return SIZE.blocks * BLOCKS[name].codes if name in BLOCKS else SIZE.columns


def input_of(dtype: torch.dtype) -> Any:
    return torch.randn(1, 3, 512, generator=torch.Generator().manual_seed(5)).to(dtype)
