"""Checks what a recording says of other ways to round and of planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .recording import as_number
from .validate_model import position_findings

Json = Mapping[str, Any]

MOST_POSITIONS = 64
"""By which a bug is recognised."""


def member_findings(where: str, output: Json, table: Json) -> Iterator[str]:
    """Members stand beside 16-bit outputs and have their dtype and shape."""
    entry = table[output["tensor"]]
    members = output.get("members", [])
    if "members" in output and entry["dtype"] not in ("f16", "bf16"):
        yield f"{where}.members: stands beside {entry['dtype']}, expected f16 or bf16"
    names = [member["name"] for member in members]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{where}.members: {name!r} stands there {names.count(name)} times"
    for member in members:
        of = f"{where}.members: {member['name']}: values"
        expected = (entry["dtype"], entry["shape"])
        yield from _tensor_findings(of, member["values"], expected, table)


def bug_findings(where: str, checkpoint: Json, table: Json) -> Iterator[str]:
    """A bug's output exists; its positions and values are as many, and few."""
    for bug in checkpoint.get("bugs", []):
        of = f"{where}: bugs: {bug['name']}"
        if bug["output"] not in checkpoint["outputs"]:
            known = ", ".join(checkpoint["outputs"])
            yield f"{of}: output {bug['output']!r} is not among outputs ({known})"
        if not as_number(bug["margin"]) >= 0:
            yield f"{of}: margin is {bug['margin']}, expected at least 0"
        at = table.get(bug["at"])
        if at is None:
            yield f"{of}: at: tensor {bug['at']} is not in the table"
            continue
        shape = at["shape"]
        if at["dtype"] != "i64" or len(shape) != 1 or shape[0] > MOST_POSITIONS:
            yield f"{of}: at: {at['dtype']} {shape}, expected i64 [n], n at most {MOST_POSITIONS}"
        yield from _tensor_findings(f"{of}: values", bug["values"], ("f32", shape), table)


def bug_position_findings(
    where: str, checkpoint: Json, table: Json, read: Callable[[str], torch.Tensor]
) -> Iterator[str]:
    """Positions ascend within the output."""
    for bug in checkpoint.get("bugs", []):
        output = checkpoint["outputs"][bug["output"]]
        shape = table[output["tensor"]]["shape"]
        yield from position_findings(f"{where}: bugs: {bug['name']}: at", read(bug["at"]), shape)


def _tensor_findings(
    where: str, key: str, expected: tuple[str, list[int]], table: Json
) -> Iterator[str]:
    entry = table.get(key)
    if entry is None:
        yield f"{where}: tensor {key} is not in the table"
    elif (entry["dtype"], entry["shape"]) != expected:
        dtype, shape = expected
        yield f"{where}: {entry['dtype']} {entry['shape']}, expected {dtype} {shape}"
