"""OpInfo's form: an operation of PyTorch's own tests, by name, on their samples."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..api.inputs import Called
from ..errors import UsageError
from ..usage import did_you_mean
from .samples import MOST, known, operations, sampled, spread, taken
from .stated import Stated


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
    every = {op.full_name: op for op in operations()}
    if name not in every:
        raise UsageError(f"OpInfo has no operation {name!r}{did_you_mean(name, list(every))}")
    op = every[name]
    given: dict[str, Any] = {}
    refused: dict[str, str] = {}
    function = _unseeded(op.op)
    takes = taken(op, device)
    if wrong := [it for it in known(dtypes) if it not in takes]:
        raise UsageError(f"{name} takes no {wrong[0]} on {device}")
    for dtype in dtypes or takes:
        samples = list(sampled(op, dtype, seed, device))
        for i in spread(len(samples), most):
            arguments = Called((samples[i].input, *samples[i].args), samples[i].kwargs)
            inputs = f"{dtype} sample {i} of {len(samples)}"
            draws = function is not op.op and _draws(function, arguments, device)
            if why := _why_refused(name, arguments, draws=draws):
                refused[inputs] = why
            else:
                given[inputs] = arguments
    if not given and len(set(refused.values())) == 1:
        refused = {"all": next(iter(refused.values()))}

    def like(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    like.__name__ = op.name.rpartition(".")[2]
    return Stated(like=like, inputs=given, candidate=candidate, refused=refused)


def _why_refused(name: str, arguments: Called, *, draws: bool) -> str:
    if draws:
        return f"{name} draws random numbers: no kernel can be held to that"
    if "empty" in name:
        return f"{name} writes nothing: what it returns is any memory"
    for it in tree_leaves((*arguments.args, *arguments.kwargs.values())):
        if isinstance(it, torch.Tensor) and it.layout != torch.strided:
            return f"an operand is {it.layout}, which is not judged"
    return ""


def _unseeded(function: Any) -> Any:
    """Without the seed that OpInfo sets for operations that may draw random numbers."""
    code = getattr(function, "__code__", None)
    if code is None or "wrapper_set_seed" not in code.co_names:
        return function
    plain = {"wrapper_set_seed": lambda op, *args, **kwargs: op(*args, **kwargs)}
    return FunctionType(
        code, function.__globals__ | plain, None, function.__defaults__, function.__closure__
    )


def _draws(function: Any, arguments: Called, device: str) -> bool:
    """Whether a call moves the generator on."""

    def state() -> torch.Tensor:
        of_host = torch.device(device).type == "cpu"
        return torch.get_rng_state() if of_host else torch.cuda.get_rng_state(device)

    before = state()
    with contextlib.suppress(Exception):  # which the verdict tells
        function(*arguments.args, **arguments.kwargs)
    return not torch.equal(before, state())
