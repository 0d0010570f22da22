"""BackendBench's form (github.com/meta-pytorch/BackendBench): a folder add__Tensor is of the
operator aten.add.Tensor; the first of its files add__Tensor_implementation*.py has the function
add__Tensor_kernel_impl, which takes the operator's arguments.

Its inputs are the calls of the operator that OpInfo's samples come to, or those of a trace in the
benchmark's text: lines `Operator: aten.add.Tensor` and `cnt: 1, ((T([2, 3], f32), 1), {})`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..api.inputs import Called
from ..errors import UsageError
from ..format.recording import DTYPES, TORCH_DTYPES
from .operator_trace import lines, parsed
from .opinfo import MOST, chosen, operations, sampled, spread
from .stated import Stated


def stated(
    folder: Path,
    *,
    trace: Path | None = None,
    dtypes: Sequence[str] = (),
    most: int = MOST,
    seed: int = 42,
    device: str = "cpu",
) -> Stated:
    """Raises UsageError where folder, operator or inputs are not there."""
    name = folder.resolve().name
    files = sorted(folder.glob(f"{name}_implementation*.py"))
    if not files:
        raise UsageError(f"{folder}: there is no {name}_implementation*.py")
    operator = _operator(name)
    if trace is not None:
        torch.manual_seed(seed)
        every = {f"line {at}": text for at, text in lines(trace, str(operator))}
        names = [list(every)[i] for i in spread(len(every), most)]
        given = {at: parsed(every[at], f"{trace}, {at}", device) for at in names}
    else:
        given = dict(_of_samples(operator, dtypes, most, seed, device))
    if not given:
        whence = str(trace or "OpInfo's samples")
        raise UsageError(f"{folder}: {whence} does not call {operator}; --trace FILE may")

    def like(*args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    like.__name__ = name
    return Stated(like, given, f"{files[0].resolve()}:{name}_kernel_impl")


def _operator(folder: str) -> Any:
    base, _, overload = folder.rpartition("__")
    base, overload = (base, overload) if base and overload else (folder, "default")
    found = getattr(getattr(torch.ops.aten, base, None), overload, None)
    if found is None:
        raise UsageError(f"{folder}: torch.ops.aten has no {base}.{overload}")
    return found


class _Watched(TorchDispatchMode):
    """Keeps the arguments of an operator's calls."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self._operator = operator
        self.calls: list[Called] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._operator:
            copies = torch.utils._pytree.tree_map(_copied, (args, kwargs or {}))
            self.calls.append(Called(*copies))
        return func(*args, **(kwargs or {}))


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _of_samples(
    operator: Any, dtypes: Sequence[str], most: int, seed: int, device: str
) -> Iterator[tuple[str, Called]]:
    """By operations of OpInfo that have a word of the operator's name."""
    base = operator._schema.name.removeprefix("aten::")
    in_place = base.endswith("_")
    word = base.strip("_").removeprefix("native_")
    for op in operations():
        function = op.inplace_variant if in_place else op.op
        names = (op.name.rpartition(".")[2], op.aten_name)
        if function is None or not any(name.startswith(word) for name in names if name):
            continue
        takes = [DTYPES[it] for it in chosen(op, (), device)]
        for dtype in [it for it in dtypes or takes if it in takes]:
            calls: list[Called] = []
            for sample in sampled(op, TORCH_DTYPES[dtype], seed, device):
                with _Watched(operator) as watched, torch.no_grad():
                    try:
                        function(sample.input, *sample.args, **sample.kwargs)
                    except RuntimeError:
                        continue  # samples that no in-place variant takes
                calls += watched.calls
            for i in spread(len(calls), most):
                yield f"{op.full_name} {dtype} call {i} of {len(calls)}", calls[i]
