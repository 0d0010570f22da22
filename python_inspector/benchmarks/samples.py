"""PyTorch's own samples of operations (OpInfo in torch.testing._internal), in our dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import needs
from ..api.inputs import Called
from ..errors import UsageError
from ..format.recording import TORCH_DTYPES

MOST = 16
"""Samples of a dtype, by default: spread over those that there are."""


def operations() -> list[Any]:
    needs.require("OpInfo's samples", "torch", "expecttest")
    from torch import backends

    frozen = backends.flags_frozen()
    from torch.testing._internal.common_methods_invocations import op_db

    if not frozen:  # these modules forbid the whole process to set switches, as torch's tests want
        backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return list(op_db)


def taken(op: Any, device: str) -> list[str]:
    """Our dtypes that the operation takes."""
    takes = op.supported_dtypes(torch.device(device).type)
    return [name for name, dtype in TORCH_DTYPES.items() if dtype in takes]


def known(dtypes: Sequence[str]) -> Sequence[str]:
    if unknown := [name for name in dtypes if name not in TORCH_DTYPES]:
        raise UsageError(f"dtype {unknown[0]}: expected one of {', '.join(TORCH_DTYPES)}")
    return dtypes


def sampled(op: Any, dtype: str, seed: int, device: str) -> Iterator[Any]:
    torch.manual_seed(seed)
    yield from op.sample_inputs(device, TORCH_DTYPES[dtype], requires_grad=False)


class _Watched(TorchDispatchMode):
    """Keeps the arguments of an operator's calls."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self._operator = operator
        self.calls: list[Called] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._operator:
            self.calls.append(Called(*deepcopy((args, kwargs or {}))))
        return func(*args, **(kwargs or {}))


def calls_of(
    operator: Any, function: Callable[..., Any], samples: Iterable[Any]
) -> Iterator[Called]:
    """Calls of an aten operator that a function's samples come to."""
    for sample in samples:
        with _Watched(operator) as watched, torch.no_grad():
            try:
                function(sample.input, *sample.args, **sample.kwargs)
            except RuntimeError:
                continue  # samples that no in-place variant takes
        yield from watched.calls


def spread(count: int, most: int) -> list[int]:
    """Indices of so many of `count`, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(1, most - 1)) for i in range(most)})
