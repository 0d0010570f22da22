"""Calls of ops of quantised weights, as plumbline.quantised decodes them: `inspector ops` records
them with those of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, NamedTuple

import torch

from ..quantised import FORMATS, dequantize
from ..quantised.ggml import BLOCKS
from ..quantised.layouts import LAYOUTS, Layout

OPS = ("dequantize", "quantised_linear")
OPERANDS = ("codes", "scales", "zeros", "global_scale", "group_index")
"""Of the native op, in the order of `names_of`; a format lacks some."""


class Size(NamedTuple):
    """The last group is shorter, and so are words along the rows."""

    rows: int = 17
    columns: int = 136
    group: tuple[int, int] = (16, 32)
    """Rows, of formats whose scales may be of several, and columns."""
    blocks: int = 2
    """Of ggml, a row, of which there are less."""


_SIZE = Size()
_INEXACT = ("nf4", "nvfp4", "q4_1", "q5_1", "q2_k", "q4_k", "q5_k")
"""Whose values float32 rounds already: of 16 bits they would be rounded twice."""


_CODES = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class OpCall:
    op: str
    case: str
    params: Mapping[str, Any]
    operands: dict[str, torch.Tensor]
    like: Callable[..., torch.Tensor]
    """Of the operands, whose names its arguments have."""

    @property
    def codes(self) -> dict[str, torch.Tensor]:
        """Those of 8 bits, which recordings have as weights alone."""
        return {name: t for name, t in self.operands.items() if t.dtype in _CODES}


def quantised_calls(dtype: torch.dtype, seed: int) -> Iterator[OpCall]:
    """dequantize and quantised_linear of every format, to a dtype."""
    for number, name in enumerate(FORMATS):
        if dtype != torch.float32 and name in _INEXACT:
            continue
        engine = torch.Generator().manual_seed(seed * 1000 + number)
        operands, group = weight(name, dtype, engine)
        params: dict[str, Any] = {"layout": name} | ({"group": list(group)} if group else {})
        decoder = named(operands, _decoder(name, group, dtype))
        yield OpCall("dequantize", name, params, operands, decoder)
        x = torch.randn((3, _width(name, operands)), generator=engine).to(dtype)
        of_linear = {"x": x, **operands}
        linear = named(of_linear, _linear(name, group))
        yield OpCall("quantised_linear", name, params, of_linear, linear)


def named(names: Iterable[str], like: Callable[..., Any]) -> Callable[..., Any]:
    """A function of these arguments, by place or by name."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    of_names = Signature([Parameter(it, kind) for it in names])

    def call(*tensors: torch.Tensor, **others: torch.Tensor) -> Any:
        given = of_names.bind(*tensors, **others).arguments
        return like(*(given[it] for it in of_names.parameters))

    call.__signature__ = of_names  # type: ignore[attr-defined]
    return call


def _width(name: str, operands: Mapping[str, torch.Tensor]) -> int:
    return int(dequantize(name, *operands.values()).shape[1]) if name in BLOCKS else _SIZE.columns


def _decoder(
    name: str, group: tuple[int, int] | None, dtype: torch.dtype
) -> Callable[..., torch.Tensor]:
    return lambda *tensors: dequantize(name, *tensors, group=group).to(dtype)


def _linear(name: str, group: tuple[int, int] | None) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        weight = dequantize(name, *tensors, group=group)
        return (x.float() @ weight.mT).to(x.dtype)

    return call


def weight(
    name: str, dtype: torch.dtype, engine: torch.Generator, size: Size = _SIZE
) -> tuple[dict[str, torch.Tensor], tuple[int, int] | None]:
    """The tensors of a format by the operands' names, with scales of this dtype; how many rows and
    columns share one."""
    if name in BLOCKS:
        return {"codes": _blocks(name, engine, -(-size.rows // 6), size.blocks)}, None
    of = LAYOUTS[name]
    group = (size.group[0] if of.blocks else 1, size.group[1])
    tensors = _grouped(of, dtype, engine, size, group)
    has = (True, True, of.zeros, of.global_scale, of.group_index)
    names = [operand for operand, there in zip(OPERANDS, has, strict=True) if there]
    return dict(zip(names, tensors, strict=True)), None if of.flat else group


def _bytes(engine: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(256, shape, generator=engine, dtype=torch.uint8)


def _words(engine: torch.Generator, *shape: int) -> torch.Tensor:
    return _bytes(engine, *shape, 4).view(torch.int32).squeeze(-1)


def _scales(engine: torch.Generator, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.rand(shape, generator=engine) / 4 + 0.01).to(dtype)


def _blocks(name: str, engine: torch.Generator, rows: int, blocks: int) -> torch.Tensor:
    sizes = BLOCKS[name].sizes
    codes = _bytes(engine, rows, blocks * sum(sizes))
    at = 0
    for size in sizes * blocks:
        if size == 2:  # an f16: of everyday size
            codes[:, at : at + 2] = _scales(engine, torch.float16, rows, 1).view(torch.uint8)
        at += size
    return codes


def _grouped(
    of: Layout, dtype: torch.dtype, engine: torch.Generator, size: Size, group: tuple[int, int]
) -> list[torch.Tensor]:
    rows, columns = size.rows, size.columns
    if of.flat:
        count = -(-rows * columns // of.flat)
        return [_bytes(engine, rows, columns // 2), _scales(engine, torch.float32, count)]

    def stored(shape: tuple[int, int], words_along: int | None = None) -> tuple[int, ...]:
        out = list(reversed(shape) if of.by_input else shape)
        if words_along is not None:
            out[words_along] = -(-out[words_along] // 8)
        return tuple(out)

    of_groups = (-(-rows // group[0]), -(-columns // group[1]))
    if of.word == 32:
        codes = _words(engine, *stored((rows, columns), of.packed_axis))
    elif of.word == 8:
        codes = _bytes(engine, rows, columns // 2)
    elif "e4m3fn" in of.about:
        code = torch.float8_e5m2 if dtype == torch.float16 else torch.float8_e4m3fn
        codes = torch.randn((rows, columns), generator=engine).mul(30).to(code)
    else:
        codes = _bytes(engine, rows, columns).view(torch.int8)
    if of.exponents:
        scales = torch.randint(118, 128, of_groups, generator=engine, dtype=torch.uint8)
    elif of.global_scale:
        scales = _scales(engine, torch.float8_e4m3fn, *of_groups).float()
    else:
        scales = _scales(engine, dtype, *stored(of_groups))
    tensors = [codes, scales]
    if of.zeros and of.zeros_axis is None:
        tensors.append(torch.randint(-8, 9, of_groups, generator=engine, dtype=torch.int8))
    elif of.zeros:
        tensors.append(_words(engine, *stored(of_groups, of.zeros_axis)))
    if of.global_scale:
        tensors.append(torch.tensor([0.25]))  # quotients are exact: float64 has the same
    if of.group_index:  # as act-order has them
        tensors.append(torch.randperm(columns, generator=engine).int() % of_groups[1])
    return tensors
