"""Recordings of single ops, called as torch has them: `inspector ops`.

A recording a dtype, a checkpoint of block `op` a call: of each op odd sizes, one element and
broadcast operands, and of the values normal ones, huge and denormal ones, and NaN, infinities and
both zeros among others; of whole numbers small ones and any that the dtype has. Values come from
the seed, the op and the call alone.
"""

from __future__ import annotations

import copy
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from ..errors import RecordError, UsageError
from ..format.recording import Checkpoint
from ..recorder.one_call import OneCallRecording
from . import quantised_ops
from .op_table import dtypes_of_ops
from .quantised_ops import OpCall, quantised_calls
from .torch_call import ROWS, Op, Shape
from .torch_ops import OPS, PRODUCT

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""That every op has."""
WHOLES = {
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}
CODES = {
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "u8": torch.uint8,
}
"""Of products of matrices."""
MORE = {"f64": torch.float64, **WHOLES, **CODES}
"""That some have."""
VALUES = ("normal", "huge", "denormal", "special")
_MOST_TERMS = 128
"""Whose sum does not overflow in any order."""
_NO_CODES: Mapping[str, torch.Tensor] = {}
_SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0)


class OpRecording(OneCallRecording):
    """A recording of calls of many ops."""

    def of(
        self,
        name: str,
        like: Callable[..., Any],
        params: Mapping[str, Any],
        codes: Mapping[str, torch.Tensor] = _NO_CODES,
    ) -> OpRecording:
        """This recording, for calls of another op; `codes` are operands that are to be weights."""
        other = copy.copy(self)
        other.name, other._like, other.params = name, like, {"op": name, **params}
        other._calls = Counter()
        other._use({})
        other.codes = codes
        return other

    params: Mapping[str, Any]
    codes: Mapping[str, torch.Tensor] = _NO_CODES

    def _checkpoint(self, *args: Any, **kwargs: Any) -> Checkpoint:
        made = super()._checkpoint(*args, **kwargs)
        op = OPS.get(self.params["op"])
        alone = "out" if op is None else op.output
        outputs = {
            alone if name == "out" else name.removeprefix("out."): it
            for name, it in made.outputs.items()
        }
        inputs = {name: it for name, it in made.inputs.items() if name not in self.codes}
        weights = {
            name: self._draft.weight(f"{made.id}.{name}", t) for name, t in self.codes.items()
        }
        params = dict(self.params)
        return replace(
            made, block="op", params=params, inputs=inputs, weights=weights, outputs=outputs
        )


def record_ops(
    out: Path, names: Collection[str] = (), seed: int = 0, device: str = "cpu"
) -> tuple[int, list[str]]:
    """Writes `out`/ops-f32 and so on, one of each dtype that some call has; how many calls they
    have, and a line for each call that cannot be recorded.

    Raises UsageError where a name is of no op that torch has.
    """
    known = (*OPS, *quantised_ops.OPS)
    if unknown := sorted(set(names) - set(known)):
        raise UsageError(f"[ops] {unknown[0]!r} is no op of {', '.join(known)}")
    count, left_out = 0, []
    for word, dtype in (DTYPES | MORE).items():
        recording = OpRecording(_nothing, weights={})
        recording.name = f"ops-{word}"
        recording._storage = word if word in DTYPES or word == "f64" else "f32"
        made = list(_calls_of(names or known, word, dtype, seed))
        if not made:
            continue
        for it in made:
            operands = {name: t.to(device) for name, t in it.operands.items()}
            one = recording.of(it.op, it.like, it.params, it.codes)
            try:
                with torch.device(device):
                    one.add(((), operands), it.case)
                count += 1
            except RecordError as error:
                left_out.append(f"{it.op} {it.case} {word}: {error}")
        recording.save(out / recording.name)
    return count, left_out


def recorded_in(word: str) -> frozenset[str]:
    """The ops of which torch's calls in this dtype, f64 or one of WHOLES, are recorded: those that
    devices have in it, but for casts, which are recorded from floats, gradients, which are made in
    float32, and products of whole numbers (PRODUCT)."""
    table = dtypes_of_ops()
    kind = "f64" if word == "f64" else "i64" if word in WHOLES else ""
    return frozenset(
        name
        for name in OPS
        if {kind, word} <= table[name] and name != "cast" and not name.endswith("_backward")
    )


def _calls_of(names: Collection[str], word: str, dtype: torch.dtype, seed: int) -> Iterator[OpCall]:
    if word in DTYPES:
        yield from _all_calls(names, dtype, seed)
        return
    for name in names:
        if name in recorded_in(word):
            like = OPS[name].like
            for case, params, operands in calls(name, OPS[name], dtype, seed):
                if dtype.is_signed or params.get("value", 0) >= 0:
                    call = _with(like, params, list(operands))
                    yield OpCall(name, case, params, operands, call)
        if name == "gemm" and word in CODES:
            for case, params, operands in calls(name, PRODUCT, dtype, seed):
                product = _with(PRODUCT.like, params, list(operands))
                yield OpCall(name, case, params, operands, product)


def _all_calls(names: Collection[str], dtype: torch.dtype, seed: int) -> Iterator[OpCall]:
    for name in names:
        if name in OPS:
            like = OPS[name].like
            for case, params, operands in calls(name, OPS[name], dtype, seed):
                with_params = _with(like, params, list(operands))
                yield OpCall(name, case, params, operands, with_params)
    for it in quantised_calls(dtype, seed):
        if it.op in names:
            yield it


def calls(
    name: str, op: Op, dtype: torch.dtype, seed: int
) -> Iterator[tuple[str, Mapping[str, Any], dict[str, torch.Tensor]]]:
    """A case's name, the params and the operands of each call."""
    for shapes in op.shapes:
        for number, params in enumerate(op.params):
            if any(axis >= len(shapes[0]) for axis in params.get("axes", ())):
                continue
            below = _below(op, shapes, params)
            all_values = VALUES if dtype.is_floating_point and dtype.itemsize > 1 else VALUES[:2]
            for values in all_values if op.shapes.index(shapes) == 0 else VALUES[:1]:
                sizes = "-".join("x".join(map(str, shape)) for shape in shapes[:2])
                case = f"{values}-{sizes}" + (f"-{number}" if len(op.params) > 1 else "")
                engine = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name} {case}".encode()))
                operands = {
                    it: _operand(op, it, shape, dtype, values, engine, below)
                    for it, shape in zip(op.operands, shapes, strict=True)
                }
                if params.get("ignored", 0) < 0:
                    operands["labels"][::3] = params["ignored"]
                yield case, params, operands


def _below(op: Op, shapes: tuple[Shape, ...], params: Mapping[str, Any]) -> int:
    """What ids are below."""
    kinds = op.kinds.values()
    if "places" in kinds:
        return shapes[0][params["axis"]]
    if "rows" in kinds:
        return ROWS
    if "outputs" in kinds:
        return shapes[1][0]
    return shapes[0][-1] if "classes" in kinds else shapes[-1][0]


def _operand(
    op: Op,
    name: str,
    shape: Shape,
    dtype: torch.dtype,
    values: str,
    engine: torch.Generator,
    below: int,
) -> torch.Tensor:
    kind = op.kinds.get(name)
    if kind == "bool":
        return torch.rand(shape, generator=engine) < 0.5
    if kind in ("ids", "places", "rows", "classes", "outputs"):
        return torch.randint(below, shape, generator=engine)
    if kind == "sum":
        dtype = torch.float32 if dtype.is_floating_point else torch.int32
    if not dtype.is_floating_point:
        return _whole(shape, dtype, values, engine)
    drawn = torch.randn(shape, generator=engine, dtype=torch.float64)
    if kind == "equal":
        drawn = drawn.round()
    if kind in ("few", "most"):
        seldom = torch.rand(shape, generator=engine) < 1 / shape[-1]
        drawn[seldom if kind == "most" else ~seldom] = 0
    limits = torch.finfo(dtype)
    if values == "huge" and kind != "small":
        most = limits.max / _MOST_TERMS
        drawn *= most**0.5 / 4 if op.sums_products else most
    if values == "denormal":
        drawn *= limits.tiny / 2
    drawn = drawn.to(torch.float32 if kind == "wide" else dtype)
    if values == "special" and kind not in ("finite", "small", "wide"):
        places = torch.rand(shape, generator=engine) < 1 / 8
        chosen = torch.tensor(_SPECIAL, dtype=dtype)
        drawn[places] = chosen[torch.randint(len(_SPECIAL), shape, generator=engine)][places]
    return drawn


def _whole(shape: Shape, dtype: torch.dtype, values: str, engine: torch.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape, generator=engine) < 0.5
    limits = torch.iinfo(dtype)
    least, most = (limits.min, min(limits.max, 2**63 - 1)) if values == "huge" else (-3, 4)
    drawn = torch.randint(max(least, limits.min), most, shape, generator=engine)
    return drawn.to(dtype)


def _nothing(x: torch.Tensor) -> torch.Tensor:
    return x


def _with(
    like: Callable[..., Any], params: Mapping[str, Any], names: list[str]
) -> Callable[..., Any]:
    """The call with its params, whose arguments have the operands' names."""

    def call(*operands: torch.Tensor, **more: torch.Tensor) -> dict[str, torch.Tensor]:
        made = like(*operands, **more, **params)
        return made if isinstance(made, dict) else {"out": made}

    parameters = [p for p in signature(like).parameters.values() if p.name in names]
    call.__signature__ = signature(like).replace(parameters=parameters)  # type: ignore[attr-defined]
    return call
