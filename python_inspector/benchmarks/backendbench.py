"""BackendBench's form (github.com/meta-pytorch/BackendBench): a folder add__Tensor is of the
operator aten.add.Tensor; the first of its files add__Tensor_implementation*.py has the function
add__Tensor_kernel_impl, which takes the operator's arguments.

Its inputs are the calls of the operator that OpInfo's samples come to, or those of a trace in the
benchmark's text: after a line `Operator: aten.add.Tensor` lines like `cnt: 1, ((T([2, 3], f32), 1),
{})`; T has shape, dtype and, where they are no usual ones, strides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.testing import make_tensor

from ..api.inputs import Called
from ..errors import UsageError
from .files import existing
from .samples import MOST, calls_of, operations, sampled, spread, taken
from .stated import Stated
from .tensors import dtype_of


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
        every = {f"line {at}": text for at, text in _lines(trace, str(operator))}
        names = [list(every)[i] for i in spread(len(every), most)]
        given = {at: _parsed(every[at], f"{trace}, {at}", device) for at in names}
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
        for dtype in [it for it in taken(op, device) if it in (dtypes or (it,))]:
            calls = list(calls_of(operator, function, sampled(op, dtype, seed, device)))
            for i in spread(len(calls), most):
                yield f"{op.full_name} {dtype} call {i} of {len(calls)}", calls[i]


def _lines(trace: Path, operator: str) -> Iterator[tuple[int, str]]:
    current = ""
    for at, line in enumerate(existing(trace).read_text().splitlines(), 1):
        if match := re.match(r"Operator: (.*)", line):
            current = match[1].strip()
        elif current == operator and (match := re.match(r"cnt: \d+, (.*)", line)):
            yield at, match[1]


def _parsed(text: str, where: str, device: str) -> Called:
    """A call as the benchmark writes it; nothing in it is executed."""
    try:
        args, kwargs = _value(ast.parse(text.strip(), mode="eval").body, device)
        return Called(tuple(args), dict(kwargs))
    except (SyntaxError, ValueError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(f"{where}: {error}") from None


def _value(node: ast.expr, device: str) -> Any:
    match node:
        case ast.Tuple(elts=items):
            return tuple(_value(item, device) for item in items)
        case ast.List(elts=items):
            return [_value(item, device) for item in items]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {ast.literal_eval(k): _value(v, device) for k, v in pairs if k is not None}
        case ast.Call(func=ast.Name(id="T"), args=[shape, ast.Name(id=dtype), *strides]):
            rest = map(ast.literal_eval, strides)
            return _tensor(ast.literal_eval(shape), dtype_of(dtype), device, *rest)
        case ast.Name(id="inf"):
            return float("inf")
        case ast.Name(id=dtype):
            return dtype_of(dtype)
        case ast.Attribute(value=ast.Name(id="torch" | "th"), attr=name):
            return getattr(torch, name)
        case _:
            return ast.literal_eval(node)


def _tensor(
    shape: Sequence[int], dtype: torch.dtype, device: str, strides: Sequence[int] = ()
) -> torch.Tensor:
    """Values as the benchmark draws them: floats from 0 to 1."""
    bounds: dict[str, Any] = {"low": 0, "high": 1} if dtype.is_floating_point else {}
    if not strides:
        return make_tensor(tuple(shape), dtype=dtype, device=device, **bounds)
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    data = make_tensor((extent,), dtype=dtype, device=device, **bounds)
    return data.as_strided(tuple(shape), tuple(strides))
