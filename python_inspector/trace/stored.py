"""The dtypes in which torch stores what an operation computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

Dtypes = tuple[torch.dtype | None, ...]
_output_dtypes: dict[Any, Dtypes] = {}
"""By operation and operands: each is called once to find out."""


def stored_dtypes(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Dtypes:
    """Of every result; None for what is no tensor."""
    key = (func, _kinds(args), _kinds(tuple(kwargs.items())))
    if key not in _output_dtypes:
        result = func(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else [result]
        _output_dtypes[key] = tuple(getattr(value, "dtype", None) for value in results)
    return _output_dtypes[key]


def _kinds(values: Sequence[Any]) -> tuple[Any, ...]:
    """Of every operand what the dtype of a result can depend on."""

    def kind(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.dtype, value.ndim == 0
        if isinstance(value, (list, tuple)):
            return _kinds(value)
        return value if isinstance(value, (torch.dtype, str, bool, type(None))) else type(value)

    return tuple(map(kind, values))
