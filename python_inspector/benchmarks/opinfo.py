"""PyTorch's own samples of an operation (OpInfo in torch.testing._internal), in our dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import needs
from ..api.inputs import Called
from ..errors import UsageError
from ..format.recording import DTYPES, TORCH_DTYPES
from ..usage import did_you_mean
from .stated import Stated

MOST = 16
"""Samples of a dtype, by default: spread over those that there are."""


def stated(
    name: str,
    candidate: str | None = None,
    *,
    dtypes: Sequence[str] = (),
    most: int = MOST,
    seed: int = 42,
    device: str = "cpu",
) -> Stated:
    """`name` is OpInfo's, with the variant where there is one: softmax, softmax.with_dtype,
    nn.functional.rms_norm. Raises UsageError where there is no such operation or dtype."""
    op = operation(name)
    given: dict[str, Any] = {}
    function, refused = op.op, {}
    if "wrapper_set_seed" in getattr(getattr(function, "__code__", None), "co_names", ()):
        refused = {"all": f"{name} draws random numbers: no kernel can be held to that"}
    for dtype in () if refused else chosen(op, dtypes, device):
        samples = list(sampled(op, dtype, seed, device))
        for i in spread(len(samples), most):
            sample = samples[i]
            arguments = (sample.input, *sample.args)
            given[f"{DTYPES[dtype]} sample {i} of {len(samples)}"] = Called(
                arguments, sample.kwargs
            )

    def like(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    like.__name__ = op.name.rpartition(".")[2]
    return Stated(like=like, inputs=given, candidate=candidate, refused=refused)


def operations() -> list[Any]:
    needs.require("OpInfo's samples", "torch", "expecttest")
    from torch import backends

    frozen = backends.flags_frozen()
    from torch.testing._internal.common_methods_invocations import op_db

    if not frozen:  # these modules forbid the whole process to set switches, as torch's tests want
        backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return list(op_db)


def operation(name: str) -> Any:
    known = {op.full_name: op for op in operations()}
    if name not in known:
        raise UsageError(f"OpInfo has no operation {name!r}{did_you_mean(name, list(known))}")
    return known[name]


def chosen(op: Any, dtypes: Sequence[str], device: str) -> list[torch.dtype]:
    """Those asked for, by default all of ours that the operation takes."""
    takes = op.supported_dtypes(torch.device(device).type)
    if unknown := [name for name in dtypes if name not in TORCH_DTYPES]:
        raise UsageError(f"dtype {unknown[0]}: expected one of {', '.join(TORCH_DTYPES)}")
    if wrong := [name for name in dtypes if TORCH_DTYPES[name] not in takes]:
        raise UsageError(f"{op.full_name} takes no {wrong[0]} on {device}")
    return [TORCH_DTYPES[it] for it in dtypes or TORCH_DTYPES if TORCH_DTYPES[it] in takes]


def sampled(op: Any, dtype: torch.dtype, seed: int, device: str) -> Iterator[Any]:
    torch.manual_seed(seed)
    yield from op.sample_inputs(device, dtype, requires_grad=False)


def spread(count: int, most: int) -> list[int]:
    """Indices of so many of `count`, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(1, most - 1)) for i in range(most)})
