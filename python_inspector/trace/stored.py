"""The dtypes in which torch stores what an operation computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from .operations import MOVES, is_inexact, is_number, tensors

Dtypes = tuple[torch.dtype | None, ...]
_output_dtypes: dict[Any, Dtypes] = {}
"""By operation and operands: each is called once to find out."""


def stored_dtypes(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Dtypes:
    """Of every result; None for what is no tensor."""
    key = (func, _kinds(args), _kinds(tuple(kwargs.items())))
    if key in _output_dtypes:
        return _output_dtypes[key]
    result = func(*args, **kwargs)
    results = result if isinstance(result, (tuple, list)) else [result]
    dtypes = tuple(getattr(value, "dtype", None) for value in results)
    if not isinstance(result, list):  # how many parts a split has, its numbers say
        _output_dtypes[key] = dtypes
    return dtypes


def of_integers(
    func: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments; of a function of whole numbers, as `exp` may be, in the dtype of its result,
    which torch converts them to first."""
    computes = (torch.Tag.pointwise in func.tags and name not in MOVES) or name == "logsumexp"
    if not computes or any(map(is_inexact, tensors((args, kwargs)))):
        return args
    dtype = stored_dtypes(func, args, kwargs)[0]
    if not is_number(dtype):
        return args
    return tuple(t.to(dtype) if isinstance(t, torch.Tensor) else t for t in args)


def _kinds(values: Sequence[Any]) -> tuple[Any, ...]:
    """Of every operand what the dtype of a result can depend on."""

    def kind(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.dtype, value.ndim == 0
        if isinstance(value, (list, tuple)):
            return _kinds(value)
        return value if isinstance(value, (torch.dtype, str, bool, type(None))) else type(value)

    return tuple(map(kind, values))
