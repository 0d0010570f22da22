"""Axes: what each dimension of a recorded tensor is, by name."""

from __future__ import annotations

import numpy as np
import torch

from ..errors import RecordError

Named = tuple[torch.Tensor, tuple[str, ...]]
"""A tensor and one axis name per dimension."""

HIDDEN = ("batch", "token", "channel")
QUERY = ("batch", "head", "token", "head_dim")
KEY = ("batch", "kv_head", "token", "head_dim")
CACHED = ("batch", "kv_head", "kv_token", "head_dim")
REPEATED = ("batch", "head", "kv_token", "head_dim")
SCORES = ("batch", "head", "token", "kv_token")
TABLE = ("batch", "token", "head_dim")

_BY_DIMENSIONS = {0: (), 1: ("channel",), 2: ("token", "channel"), 3: HIDDEN, 4: QUERY}


def broadcast_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...] | None:
    """The shape that both are expanded to; None where there is none. torch.broadcast_shapes imports
    sympy, which takes a second."""
    try:
        return np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return None


def by_dimensions(tensor: torch.Tensor) -> Named:
    """Axis names from the number of dimensions, where nothing better is known."""
    if tensor.ndim > 8:
        raise RecordError(f"[record] a tensor of {tensor.ndim} dimensions has no axis names")
    spare: tuple[str, ...] = ("batch", "group", "state", "token", "head", "channel")
    if tensor.ndim > len(spare):
        spare = ("batch", "group", *["state"] * (tensor.ndim - 5), "token", "head", "channel")
    return tensor, _BY_DIMENSIONS.get(tensor.ndim, spare[: tensor.ndim])
