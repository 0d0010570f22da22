"""Checks what a recording says of rounded models and simulated kernels: version 2's additions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch

Json = Mapping[str, Any]

_NARROW = ("f16", "bf16")
_DISCRETE = ("i64", "i32", "u8", "bool")
_MASKS = {"undecidable": True, "ill_conditioned": False}
"""Bools of elements, and whether they are of discrete outputs."""
_OF_OUTPUTS = (
    "model",
    "spread",
    "truncated",
    "unstable",
    "legal",
    "left_out",
    "members",
    "labels",
    *_MASKS,
)


def version_findings(recording: Json) -> Iterator[str]:
    """Version 1 has none of this."""
    if recording["version"] != 1:
        return
    text = "belongs to version 2, version is 1"
    if "traces" in recording:
        yield f"traces: {text}"
    if "spread" in recording["provenance"]["run"]:
        yield f"provenance.run.spread: {text}"
    for checkpoint in recording["checkpoints"]:
        for field in ("trace", "bugs"):
            if field in checkpoint:
                yield f"{checkpoint['id']}: {field}: {text}"
        for name, output in checkpoint["outputs"].items():
            for field in output.keys() & set(_OF_OUTPUTS):
                yield f"{checkpoint['id']}: outputs.{name}.{field}: {text}"


def trace_findings(where: str, checkpoint: Json, recording: Json) -> Iterator[str]:
    key = checkpoint.get("trace")
    if key is not None and key not in recording.get("traces", {}):
        yield f"{where}: trace: {key} is not among traces"


def model_findings(where: str, output: Json, table: Json) -> Iterator[str]:
    """An output's model, spread and truncated against its tensor; the keys of tensors exist."""
    entry = table[output["tensor"]]
    narrow = entry["dtype"] in _NARROW
    for field in ("model", "truncated"):
        if field in output and not narrow:
            yield f"{where}.{field}: stands beside {entry['dtype']}, expected f16 or bf16"
    for field in ("spread", "truncated"):
        if field in output:
            yield from _figure_findings(f"{where}.{field}", output[field], output, narrow)
    if len(output.get("labels", entry["shape"])) != len(entry["shape"]):
        yield f"{where}.labels: {len(output['labels'])} for {len(entry['shape'])} axes"
    for field in output.keys() & _MASKS.keys():
        yield from _mask_findings(f"{where}.{field}", output[field], entry, table, _MASKS[field])
    if "legal" in output:
        yield from _legal_findings(f"{where}.legal", output, entry, table)
    model = output.get("model")
    if model is None:
        return
    lengths = []
    for name, dtypes in (("at", ("i32", "i64")), ("values", (entry["dtype"],))):
        tensor = table.get(model[name])
        if tensor is None:
            yield f"{where}.model.{name}: tensor {model[name]} is not in the table"
            continue
        if tensor["dtype"] not in dtypes or len(tensor["shape"]) != 1:
            yield (
                f"{where}.model.{name}: {tensor['dtype']} {tensor['shape']}, expected "
                f"{' or '.join(dtypes)} [n]"
            )
        lengths.append(tensor["shape"])
    if len(lengths) == 2 and lengths[0] != lengths[1]:
        yield f"{where}.model.values: {lengths[1]} beside at of {lengths[0]}"


def _mask_findings(
    where: str, key: str, output: Json, table: Json, discrete: bool
) -> Iterator[str]:
    """Bools, one for each element of an output of integers or bools, or of one of floats."""
    if (output["dtype"] in _DISCRETE) != discrete:
        expected = "integers or bools" if discrete else "floats"
        yield f"{where}: stands beside {output['dtype']}, expected {expected}"
    entry = table.get(key)
    if entry is None:
        yield f"{where}: tensor {key} is not in the table"
    elif (entry["dtype"], entry["shape"]) != ("bool", output["shape"]):
        yield f"{where}: {entry['dtype']} {entry['shape']}, expected bool {output['shape']}"


def _legal_findings(where: str, output: Json, entry: Json, table: Json) -> Iterator[str]:
    """Values beside their positions, of an output that has open elements."""
    if "undecidable" not in output:
        yield f"{where}: stands without undecidable"
    legal, lengths = output["legal"], []
    for name in ("at", "values"):
        tensor = table.get(legal[name])
        if tensor is None:
            yield f"{where}.{name}: tensor {legal[name]} is not in the table"
        elif tensor["dtype"] != "i64" or len(tensor["shape"]) != 1:
            yield f"{where}.{name}: {tensor['dtype']} {tensor['shape']}, expected i64 [n]"
        else:
            lengths.append(tensor["shape"][0])
    if len(lengths) == 2 and lengths[0] != lengths[1]:
        yield f"{where}.values: {lengths[1]} beside at of {lengths[0]}"
    if legal.get("distinct", 0) >= len(entry["shape"]):
        yield f"{where}.distinct: {legal['distinct']} is no axis of {entry['shape']}"


def _figure_findings(where: str, spread: Json, output: Json, narrow: bool) -> Iterator[str]:
    """Each statistic where the output has it, and nowhere else."""
    axes = set(output["axes"])
    rows = bool(axes & {"token", "kv_token"})
    others = bool(axes - {"batch", "token", "kv_token"}) or {"token", "kv_token"} <= axes
    expected = {
        "token": rows,
        "token x head": rows and bool(axes & {"head", "kv_head"}),
        "channel": others,
        "tile": rows and others,
        "sketch": "rows" in output,
        "bits": narrow,
    }
    for name in ("ulp", "channel bits"):  # older recordings lack them
        if name in spread and not narrow:
            yield f"{where}.{name}: the output has no such statistic"
    for name, has in expected.items():
        if has and name not in spread:
            yield f"{where}: {name} is missing"
        elif not has and name in spread:
            yield f"{where}.{name}: the output has no such statistic"


def position_findings(where: str, at: torch.Tensor, shape: list[int]) -> Iterator[str]:
    """Flat positions in a tensor of this shape, ascending."""
    positions, size = at.tolist(), math.prod(shape)
    if any(a >= b for a, b in pairwise(positions)):
        yield f"{where}: positions are not ascending"
    elif positions and not 0 <= positions[0] <= positions[-1] < size:
        outside = positions[0] if positions[0] < 0 else positions[-1]
        yield f"{where}: position {outside} lies outside of {size} elements"
