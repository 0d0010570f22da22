"""Ports of transformers' blocks as other projects write them: what a case is, and what cases share.

Each kernel is right or has one real fault (`wrong`), of the kinds that public bug reports name.
They are written from the formulas, not from transformers' code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

BASE: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "num_hidden_layers": 2,
    "attn_implementation": "eager",
}
TOKENS = 13
Kernel = Callable[..., Any]


@dataclass
class Case:
    """`kernel(*args, wrong=...)` and the reference `function(*args)` of `modules`."""

    name: str
    kind: str
    function: Kernel
    args: tuple[Any, ...]
    kernel: Kernel
    modules: Sequence[torch.nn.Module] = field(default_factory=list)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def seeded(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, t in [*module.named_parameters(), *module.named_buffers()]:
            if "inv_freq" in name:
                continue
            drawn = torch.randn(t.shape, generator=generator)
            t.copy_(1 + 0.2 * drawn if "norm" in name else drawn / max(t.shape[-1:] or [1]) ** 0.5)
    return module.eval().to(dtype)


def causal(tokens: int, dtype: torch.dtype, window: int | None = None) -> torch.Tensor:
    """An additive mask [1, 1, tokens, tokens]."""
    q, k = torch.arange(tokens)[:, None], torch.arange(tokens)[None]
    seen = k <= q if window is None else (k <= q) & (k > q - window)
    lowest = torch.finfo(dtype).min
    return torch.where(seen, 0.0, lowest).to(dtype)[None, None]


def angles(dim: int, theta: float, tokens: int = TOKENS, first: int = 0) -> torch.Tensor:
    frequencies = theta ** -(torch.arange(0, dim, 2).float() / dim)
    return (torch.arange(first, first + tokens).float()[:, None] * frequencies)[None]


def tables(dim: int, dtype: torch.dtype, theta: float = 1e4) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.cat([angles(dim, theta)] * 2, -1)
    return both.cos().to(dtype), both.sin().to(dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def half(t: torch.Tensor) -> torch.Tensor:
    return t[..., : t.shape[-1] // 2]
