"""Files of flashinfer-bench, and the arguments of a workload: random, numbers, tensors of files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from ..format.safetensors_file import read_header

RANGES = {"int8": 128}
"""Random whole numbers are between minus this, else 1024, and it."""
JSON = Mapping[str, Any]


def read(
    definition: Path, workloads: Path, solution: Path, most: int | None = None
) -> tuple[JSON, list[JSON], JSON]:
    """The three files; a workload may be within a trace, as the benchmark's sets have them."""
    named = next(iter(_objects(definition)), {})
    every = [line.get("workload", line) for line in _objects(workloads)][:most]
    if not every:
        raise UsageError(f"{workloads}: there is no workload")
    return named, every, next(iter(_objects(solution)), {})


def _objects(file: Path) -> Iterator[JSON]:
    """Objects of a file of JSON, or of one with an object in each line."""
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file")
    text = file.read_text()
    try:
        try:
            made = json.loads(text)
            yield from made if isinstance(made, list) else [made]
        except ValueError:
            yield from [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from None


def axes_of(definition: JSON, given: Mapping[str, int]) -> dict[str, int]:
    """Extents by name; UsageError where one is not given."""
    fixed = {name: it["value"] for name, it in definition["axes"].items() if it["type"] == "const"}
    axes = {**given, **fixed}
    if missing := [name for name in definition["axes"] if name not in axes]:
        raise UsageError(f"there is no value for axis {missing[0]}")
    return axes


def shapes_of(specs: JSON, axes: Mapping[str, int]) -> list[list[int]]:
    return [[axes[axis] for axis in spec["shape"] or ()] for spec in specs.values()]


def values(definition: JSON, workload: JSON, root: Path) -> tuple[Any, ...]:
    """The arguments of a workload, in the definition's order."""
    axes = axes_of(definition, workload["axes"])
    return tuple(
        _value(name, spec, workload["inputs"].get(name), axes, definition, root)
        for name, spec in definition["inputs"].items()
    )


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"torch has no dtype {name}")
    return dtype


def _value(
    name: str,
    spec: JSON,
    source: JSON | None,
    axes: Mapping[str, int],
    definition: JSON,
    root: Path,
) -> Any:
    kind = "random" if source is None else source["type"]
    dtype = dtype_of(spec["dtype"])
    shape = None if spec["shape"] is None else [axes[axis] for axis in spec["shape"]]
    if source is not None and kind == "scalar":
        return source["value"]
    if source is not None and kind == "safetensors":
        return _stored(name, root / source["path"], source["tensor_key"], shape, dtype)
    if kind != "random":
        raise UsageError(f"input {name} is {kind}: expected random, scalar or safetensors")
    drawn = _drawn(shape or [], dtype)
    if definition["op_type"] == "sampling" and name == "probs":
        drawn = drawn.softmax(-1)
    return drawn.item() if shape is None else drawn


def _drawn(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """As the benchmark does."""
    if dtype.is_floating_point:
        made = torch.randn(shape, dtype=torch.float32)
        return (made.clamp(-2, 2) if dtype.itemsize == 1 else made).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape), dtype=dtype)
    most = RANGES.get(str(dtype).removeprefix("torch."), 1024)
    return torch.randint(-most, most, tuple(shape), dtype=dtype)


def _stored(
    name: str, path: Path, key: str, shape: Sequence[int] | None, dtype: torch.dtype
) -> torch.Tensor:
    if not path.is_file():
        raise UsageError(
            f"input {name}: there is no file {path} (--root is the trace set's folder)"
        )
    file = read_header(path)
    if key not in file.tensors:
        raise UsageError(f"input {name}: {path} has no tensor {key}")
    made = file.read(key)
    if list(made.shape) != list(shape or []) or made.dtype != dtype:
        raise UsageError(
            f"input {name}: {path} has {list(made.shape)} {made.dtype}, the definition says "
            f"{list(shape or [])} {dtype}"
        )
    return made
