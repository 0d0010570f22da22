"""Rows of attention without a key: torch's fused attention gives zeros there, eager code a uniform
row or NaN, and models do not use them. What depends on one is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from .attention_model import is_attention

LOWEST = -3e4
"""No score is that low: what is was masked, in float16 by -65504."""

_SOFTMAX = {"_softmax", "_log_softmax", "_safe_softmax"}
_OTHER = 1e4
"""What is no weight and no value: whatever depends on it is far from what it was."""
_MASKS = ("attn_mask", "attn_bias")


def is_mask(t: torch.Tensor) -> bool:
    """Whether a floating tensor is added to scores, to mask: it has the lowest number of its dtype
    or -inf, and nothing above 0."""
    if not t.numel() or not t.is_floating_point():
        return False
    least, most = t.aminmax()
    return bool((least <= torch.finfo(t.dtype).min) & (most <= 0))


def may_lack_keys(func: OpOverload) -> bool:
    name = func._schema.name.partition("::")[2]
    return name in _SOFTMAX or is_attention(name)


def rows_without_key(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    """Bools that broadcast to the operation's result; None where every row has a key."""
    if not may_lack_keys(func):
        return None
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    if func._schema.name.partition("::")[2] in _SOFTMAX:
        x, axis = given["self"], int(given["dim"])
        if not x.numel():
            return None
        rows = x.amax(axis, keepdim=True) <= LOWEST
    else:
        mask = next((given[name] for name in _MASKS if given.get(name) is not None), None)
        if mask is None or not mask.numel():
            return None
        allowed = mask if mask.dtype == torch.bool else mask > LOWEST
        rows = ~allowed.any(-1, keepdim=True)
    return rows if bool(rows.any()) else None


def filled(result: Any, rows: torch.Tensor) -> Any:
    """The operation's result with other numbers in these rows; as it is where they do not fit."""
    first = result[0] if isinstance(result, (tuple, list)) else result
    try:
        changed = torch.where(rows, torch.full_like(first, _OTHER), first)
    except RuntimeError:
        return result
    if changed.shape != first.shape:
        return result
    return (changed, *result[1:]) if isinstance(result, (tuple, list)) else changed
