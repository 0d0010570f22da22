"""Checks outputs of which only chosen rows are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .sampled import WIDTH, token_axis


def sampled_findings(
    where: str, output: Mapping[str, Any], table: Mapping[str, Any]
) -> Iterator[str]:
    """Dtypes and shapes of what a sampled output says of all its rows."""
    rows, sketch = output["rows"], output["sketch"]
    axis = token_axis(output["axes"])
    if "valid" in output:
        yield f"{where}.valid: stands beside rows, which need none"
    if axis is None:
        yield f"{where}.rows: the output has no axis token or kv_token"
        return
    sizes = dict(zip(output["axes"], table[output["tensor"]]["shape"], strict=True))
    chosen, of = sizes[output["axes"][axis]], rows["of"]
    if not 0 < chosen <= of:
        yield f"{where}.rows.of: {of}, but {chosen} rows are stored"
    every = sizes.get("batch", 1) * of
    expected: dict[str, tuple[str, str, list[int]]] = {
        "rows.tensor": (rows["tensor"], "i64", [chosen]),
        "sketch.reference": (sketch["reference"], "f64", [every, WIDTH]),
        "sketch.oracle": (sketch["oracle"], "f64", [every, WIDTH]),
        "sketch.rms": (sketch["rms"], "f64", [every]),
    }
    for name, (key, dtype, shape) in expected.items():
        entry = table.get(key)
        if entry is None:
            yield f"{where}.{name}: tensor {key} is not in the table"
        elif (entry["dtype"], entry["shape"]) != (dtype, shape):
            yield f"{where}.{name}: {entry['dtype']} {entry['shape']}, expected {dtype} {shape}"


def token_findings(where: str, tokens: torch.Tensor, of: int) -> Iterator[str]:
    values = tokens.tolist()
    if sorted(set(values)) != values or not 0 <= values[0] <= values[-1] < of:
        yield f"{where}: {values}, expected ascending tokens of 0 to {of - 1}"
