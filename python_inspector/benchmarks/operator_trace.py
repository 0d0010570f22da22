"""Calls of an operator in BackendBench's text: after a line `Operator: aten.add.Tensor` lines like
`cnt: 1, ((T([2, 3], f32), 1), {})`; T has shape, dtype and, where they are no usual ones, strides.
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
from ..format.recording import TORCH_DTYPES

ABBREVIATED = {"i8": "int8", "i16": "int16", "b8": "bool", "c64": "complex64", "c128": "complex128"}
"""Names of dtypes in traces; others are as ours."""


def lines(trace: Path, operator: str) -> Iterator[tuple[int, str]]:
    if not trace.is_file():
        raise UsageError(f"{trace}: there is no such file")
    current = ""
    for at, line in enumerate(trace.read_text().splitlines(), 1):
        if match := re.match(r"Operator: (.*)", line):
            current = match[1].strip()
        elif current == operator and (match := re.match(r"cnt: \d+, (.*)", line)):
            yield at, match[1]


def parsed(text: str, where: str, device: str) -> Called:
    """A call as the benchmark writes it; nothing in it is executed."""
    try:
        args, kwargs = _value(ast.parse(text.strip(), mode="eval").body, device)
        return Called(tuple(args), dict(kwargs))
    except (SyntaxError, ValueError, TypeError, KeyError, AttributeError) as error:
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
            return _tensor(ast.literal_eval(shape), dtype, *map(ast.literal_eval, strides), device)
        case ast.Name(id="inf"):
            return float("inf")
        case ast.Name(id=dtype):
            return _dtype(dtype)
        case ast.Attribute(value=ast.Name(id="torch" | "th"), attr=name):
            return getattr(torch, name)
        case _:
            return ast.literal_eval(node)


def _dtype(name: str) -> torch.dtype:
    return TORCH_DTYPES[name] if name in TORCH_DTYPES else getattr(torch, ABBREVIATED[name])


def _tensor(shape: Sequence[int], name: str, *rest: Any) -> torch.Tensor:
    """Values as the benchmark draws them: floats from 0 to 1."""
    *strides, device = rest
    dtype = _dtype(name)
    bounds: dict[str, Any] = {"low": 0, "high": 1} if dtype.is_floating_point else {}
    if not strides:
        return make_tensor(tuple(shape), dtype=dtype, device=device, **bounds)
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides[0], strict=True))
    data = make_tensor((extent,), dtype=dtype, device=device, **bounds)
    return data.as_strided(tuple(shape), tuple(strides[0]))
