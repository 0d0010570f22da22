"""The dtypes that the code of a run reads, so that its float64 run reads the same ones.

Code branches on `x.dtype`, takes an eps from `torch.finfo(x.dtype)`, casts a constant to it: all of
that is the run's, though every tensor of a float64 run is float64. A watched run notes what it
reads, in order; the float64 run of the same code reads it in the same order. What torch itself
reads inside of one function is no read of the code, but for an eps that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

_NORMS = (torch.rms_norm, functional.rms_norm)
_NAMES = ("input", "normalized_shape", "weight", "eps")


@dataclass
class Reads:
    """Each with the shape of the tensor that was asked, by which a run on another way is seen."""

    found: list[tuple[torch.dtype, torch.Size | None]] = field(default_factory=list)

    def note(self, dtype: torch.dtype, of: Any) -> None:
        self.found.append((dtype, _shape(of)))


class Reader:
    """Hands them out to one run."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._at = 0

    def next(self, own: torch.dtype, of: Any) -> torch.dtype:
        """What the watched run read here; the run's `own` where it has left that one's way."""
        if self._at >= len(self._reads.found):
            return own
        dtype, shape = self._reads.found[self._at]
        if shape != _shape(of) or dtype.is_floating_point != own.is_floating_point:
            self._at = len(self._reads.found)
            return own
        self._at += 1
        return dtype


def asked(args: tuple[Any, ...]) -> Any:
    """Of a function that gives a dtype the tensor that it is of."""
    return args[0] if args else None


def eps_of(dtype: torch.dtype) -> float:
    """What torch's rms_norm takes where it is given none: that of the dtype it computes in."""
    wide = dtype in (torch.float64, torch.complex128)
    return torch.finfo(torch.float64 if wide else torch.float32).eps


def lacks_eps(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return func in _NORMS and _bound(args, kwargs).get("eps") is None


def norm_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    given: torch.Tensor = _bound(args, kwargs)["input"]
    return given


def with_eps(args: tuple[Any, ...], kwargs: Mapping[str, Any], eps: float) -> dict[str, Any]:
    """The arguments of a norm by name, this eps among them."""
    return _bound(args, kwargs) | {"eps": eps}


_OF_NUMBERS = {torch.ops.aten.fmod.Scalar, torch.ops.aten.remainder.Scalar}


def stores_numbers(func: Any) -> bool:
    """Whether an operation of 16 bits rounds a number among its arguments to them: others compute
    with it in float32."""
    return func in _OF_NUMBERS


def with_stored_numbers(args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    if not dtype.is_floating_point:
        return args
    return tuple(
        torch.tensor(a, dtype=dtype, device="cpu").item() if isinstance(a, float) else a
        for a in args
    )


def _bound(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(zip(_NAMES, args, strict=False)) | dict(kwargs)


def _shape(of: Any) -> torch.Size | None:
    return of.shape if isinstance(of, torch.Tensor) else None
