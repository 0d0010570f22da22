"""Tensors that problems name: their dtypes, where they are, those of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..errors import UsageError
from ..format.recording import TORCH_DTYPES
from ..format.safetensors_file import read_header

ABBREVIATED = {"i8": "int8", "i16": "int16", "b8": "bool", "c64": "complex64", "c128": "complex128"}
"""Names of dtypes in the text of benchmarks; others are as ours, or torch's."""


def dtype_of(name: str) -> torch.dtype:
    dtype = TORCH_DTYPES.get(name) or getattr(torch, ABBREVIATED.get(name, name), None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"torch has no dtype {name}")
    return dtype


def placed(tree: Any, device: str) -> Any:
    """With its tensors there."""
    return tree_map(lambda it: it.to(device) if isinstance(it, torch.Tensor) else it, tree)


def stored(path: Path, key: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """One of a safetensors file; UsageError where it has another shape or dtype."""
    if not path.is_file():
        raise UsageError(f"there is no file {path} (--root is the trace set's folder)")
    file = read_header(path)
    if key not in file.tensors:
        raise UsageError(f"{path} has no tensor {key}")
    made = file.read(key)
    if list(made.shape) != list(shape) or made.dtype != dtype:
        raise UsageError(
            f"{path} has {list(made.shape)} {made.dtype}, the definition says {list(shape)} {dtype}"
        )
    return made
