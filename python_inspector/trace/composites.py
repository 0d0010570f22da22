"""Operations that torch lists as one and computes as several, each rounded to what it stores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from .attention_gradients import gradients_of

aten = torch.ops.aten


def composition(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """What to call instead with the same arguments, so that each of its operations is seen."""
    if func is aten.linalg_cross.default:
        return _cross
    if func in (aten.div.Tensor_mode, aten.div.Scalar_mode):
        return _truncated if kwargs.get("rounding_mode") == "trunc" else None
    if func is aten.logit.default:
        eps = args[1] if len(args) > 1 else kwargs.get("eps")
        return None if eps is None else _logit
    if func in (aten._native_batch_norm_legit.default, aten.cudnn_batch_norm.default):
        moves = args[5] and args[3] is not None
        return functools.partial(_batch_norm, len(func._schema.returns)) if moves else None
    return gradients_of(func)


def _cross(a: torch.Tensor, b: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    a, b = torch.broadcast_tensors(a, b)
    return a.roll(-1, dim) * b.roll(-2, dim) - a.roll(-2, dim) * b.roll(-1, dim)


def _truncated(a: torch.Tensor, b: Any, *, rounding_mode: str) -> torch.Tensor:
    """The quotient is rounded to what is stored first, and may reach the next whole number."""
    return (a / b).trunc()


def _logit(x: torch.Tensor, eps: float) -> torch.Tensor:
    """What is clamped is rounded: 1 - eps has fewer bits of eps."""
    return torch.logit(x.clamp(eps, 1 - eps))


def _batch_norm(
    results: int,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The output does not depend on the running statistics, which move towards those of `x`."""
    norm = aten._native_batch_norm_legit.no_stats
    made = norm(x, weight, bias, training, momentum, eps)
    axes = [0, *range(2, x.ndim)]
    values = x.to(running_mean.dtype)
    for running, now in (
        (running_mean, values.mean(axes)),
        (running_var, values.var(axes, correction=1)),
    ):
        running.copy_(momentum * now + (1 - momentum) * running)
    return (*made, *[x.new_empty(0)] * (results - len(made)))
