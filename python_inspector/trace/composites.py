"""Operations that torch lists as one and computes as several, each rounded to what it stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten


def composition(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., torch.Tensor] | None:
    """What to call instead with the same arguments, so that each of its operations is seen."""
    if func is aten.linalg_cross.default:
        return _cross
    if func is aten.logit.default:
        eps = args[1] if len(args) > 1 else kwargs.get("eps")
        return None if eps is None else _logit
    return None


def _cross(a: torch.Tensor, b: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    a, b = torch.broadcast_tensors(a, b)
    return a.roll(-1, dim) * b.roll(-2, dim) - a.roll(-2, dim) * b.roll(-1, dim)


def _logit(x: torch.Tensor, eps: float) -> torch.Tensor:
    """What is clamped is rounded: 1 - eps has fewer bits of eps."""
    return torch.logit(x.clamp(eps, 1 - eps))
