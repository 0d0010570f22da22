"""OpInfo's form: an operation of PyTorch's own tests, by name, on their samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    function, refused = op.op, {}
    if "wrapper_set_seed" in getattr(getattr(function, "__code__", None), "co_names", ()):
        refused = {"all": f"{name} draws random numbers: no kernel can be held to that"}
    takes = taken(op, device)
    if wrong := [it for it in known(dtypes) if it not in takes]:
        raise UsageError(f"{name} takes no {wrong[0]} on {device}")
    for dtype in () if refused else dtypes or takes:
        samples = list(sampled(op, dtype, seed, device))
        for i in spread(len(samples), most):
            arguments = Called((samples[i].input, *samples[i].args), samples[i].kwargs)
            given[f"{dtype} sample {i} of {len(samples)}"] = arguments

    def like(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    like.__name__ = op.name.rpartition(".")[2]
    return Stated(like=like, inputs=given, candidate=candidate, refused=refused)
