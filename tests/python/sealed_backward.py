"""Kernels of a norm with a backward, for test_sealed_backward.py: run in a process of their own."""

from __future__ import annotations

import os
from typing import Any

import torch


class Norm(torch.autograd.Function):
    mean = 1.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    @classmethod
    def backward(cls, ctx: Any, g: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        n, scaled = x * rstd, g * weight
        dx = rstd * (scaled - cls.mean * n * (scaled * n).mean(-1, keepdim=True))
        return dx, (g * n).flatten(0, -2).sum(0)


class Wrong(Norm):
    mean = 0.0


class Raises(Norm):
    @classmethod
    def backward(cls, ctx: Any, g: torch.Tensor) -> Any:
        raise NotImplementedError("no gradient yet")


class Ends(Norm):
    @classmethod
    def backward(cls, ctx: Any, g: torch.Tensor) -> Any:
        os._exit(0)


class Module(torch.nn.Module):
    function = Norm

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.function.apply(x, self.weight)
        return made


class WrongModule(Module):
    function = Wrong


module, wrong_module = Module(), WrongModule()
