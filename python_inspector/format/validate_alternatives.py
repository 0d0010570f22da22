"""Checks members, undecidable choices and planted bugs of a recording against its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Json = Mapping[str, Any]

_NARROW = ("f16", "bf16")
_MOST_POSITIONS = 64


def alternative_findings(where: str, output: Json, table: Json) -> Iterator[str]:
    """`members` stand beside 16-bit floats, `undecidable` beside whole numbers."""
    entry = table[output["tensor"]]
    dtype, shape = entry["dtype"], entry["shape"]
    if "members" in output and dtype not in _NARROW:
        yield f"{where}.members: stands beside {dtype}, expected f16 or bf16"
    for i, member in enumerate(output.get("members", ())):
        yield from _like(f"{where}.members[{i}].values", member["values"], dtype, shape, table)
    if "undecidable" in output:
        if dtype.startswith(("f", "bf")):
            yield f"{where}.undecidable: stands beside {dtype}, expected integers or bool"
        yield from _like(f"{where}.undecidable", output["undecidable"], "bool", shape, table)


def bug_findings(where: str, checkpoint: Json, table: Json) -> Iterator[str]:
    for i, bug in enumerate(checkpoint.get("bugs", ())):
        place = f"{where}: bugs[{i}]"
        if bug["output"] not in checkpoint["outputs"]:
            yield f"{place}.output: {bug['output']} is none of the outputs"
        if "at" not in bug:
            continue
        at = table.get(bug["at"])
        if at is None:
            yield f"{place}.at: tensor {bug['at']} is not in the table"
        elif at["dtype"] != "i64" or len(at["shape"]) != 1 or at["shape"][0] > _MOST_POSITIONS:
            yield (
                f"{place}.at: {at['dtype']} {at['shape']}, expected i64 [n] with n at most "
                f"{_MOST_POSITIONS}"
            )
        else:
            yield from _like(f"{place}.values", bug["values"], "f32", at["shape"], table)


def bug_position_findings(
    where: str, checkpoint: Json, table: Json, read: Callable[[str], torch.Tensor]
) -> Iterator[str]:
    """Positions that lie outside of the output; the files are sound."""
    for i, bug in enumerate(checkpoint.get("bugs", ())):
        if "at" not in bug:
            continue
        size = math.prod(table[checkpoint["outputs"][bug["output"]]["tensor"]]["shape"])
        outside = [at for at in read(bug["at"]).tolist() if not 0 <= at < size]
        if outside:
            yield f"{where}: bugs[{i}].at: position {outside[0]} lies outside of {size} elements"


def _like(where: str, key: str, dtype: str, shape: list[int], table: Json) -> Iterator[str]:
    entry = table.get(key)
    if entry is None:
        yield f"{where}: tensor {key} is not in the table"
    elif (entry["dtype"], entry["shape"]) != (dtype, shape):
        yield f"{where}: {entry['dtype']} {entry['shape']}, expected {dtype} {shape}"
