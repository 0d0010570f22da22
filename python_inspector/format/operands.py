"""The tensors that verify() and the harness hand each other, as safetensors files.

Needs NumPy alone: torch is imported where tensors are asked for, and looked for, not imported,
where a function may have returned some.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .recording import ITEM_SIZES
from .safetensors_file import SafetensorsFile

_ARRAY_DTYPES = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8", "i32": "<i4", "u8": "u1", "bool": "?",
    "i8": "i1",
}  # fmt: skip
"""NumPy has no bf16; floats of 8 bits come upcast."""
_WRITTEN = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "uint8": "u8", "bool": "bool",
}  # fmt: skip
"""Dtypes as NumPy, ml_dtypes and torch call them, and as the format does."""
_WIDENED = ("int8", "int16", "uint16", "uint32", "uint64")
"""What the format has not: in int64, as recordings have it; 8-bit floats are in float32, complex
numbers are pairs."""


@dataclass(frozen=True, eq=False)
class Output:
    """A copy of a tensor on its way to the harness. One of an accelerator is a `tensor` there,
    whose bytes come to the host when they are asked for."""

    dtype: str
    shape: tuple[int, ...]
    held: bytes = b""
    tensor: Any = None

    @functools.cached_property
    def data(self) -> bytes:
        """The bytes of its elements, rows first."""
        if self.tensor is None:
            return self.held
        from .host_copy import bytes_of

        data: bytes = bytes_of(self.tensor.cpu()).numpy().tobytes()
        return data

    def __eq__(self, other: object) -> bool:
        """Whether it has the same bits."""
        if not isinstance(other, Output) or (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        if self.tensor is None or other.tensor is None:
            return self.data == other.data
        from .host_copy import same_bits

        return same_bits(self.tensor, other.tensor)

    __hash__ = None  # type: ignore[assignment]


def read(file: SafetensorsFile, name: str, arrays: str) -> Any:
    """A copy of the named tensor, as a torch tensor or, where `arrays` is "numpy", as an array."""
    if arrays == "torch":
        return file.read(name)
    entry = file.tensors[name]
    payload = file.payload_of(name)
    if entry.dtype == "bf16":  # the upper halves of float32
        halves = np.frombuffer(payload, "<u2").astype("<u4") << 16
        return halves.view("<f4").reshape(entry.shape)
    return np.ndarray(entry.shape, _ARRAY_DTYPES[entry.dtype], bytearray(payload))


def output_of(value: Any) -> Output:
    """A copy of what a function returned; TypeError says what it is instead of a tensor."""
    if isinstance(value, np.ndarray | np.generic):
        array = _array_in_format(np.asarray(value))
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return Output(_written(array.dtype.name), array.shape, little.tobytes())
    torch = sys.modules.get("torch")  # without torch there are no tensors
    if torch is None or not isinstance(value, torch.Tensor):
        return _of_other_array(value)
    from .host_copy import bytes_of, is_host

    made = _tensor_in_format(value.detach())
    dtype, shape = _written(str(made.dtype).removeprefix("torch.")), tuple(made.shape)
    if is_host(made.device):
        return Output(dtype, shape, bytes_of(made).numpy().tobytes())
    return Output(dtype, shape, tensor=made.clone(memory_format=torch.contiguous_format))


def _array_in_format(array: Any) -> Any:
    if array.dtype.kind == "c":
        pairs = np.stack([array.real, array.imag], -1)
        return pairs
    name = array.dtype.name
    if name.startswith("float8"):  # of ml_dtypes
        return array.astype(np.float32)
    _require_int64(name, array)
    return array.astype(np.int64) if name in _WIDENED else array


def _tensor_in_format(value: Any) -> Any:
    import torch

    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
        return value.float() if value.dtype == torch.float16 else value
    name = str(value.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return value.float()
    if name == "uint64":
        _require_int64(name, value.cpu().numpy())
    return value.to(torch.int64) if name in _WIDENED else value


def _require_int64(name: str, array: Any) -> None:
    if name == "uint64" and array.size and int(array.max()) >= 1 << 63:
        raise TypeError(f"holds {int(array.max())}, which int64 cannot hold")


def _of_other_array(value: Any) -> Output:
    """Of JAX, MLX and whatever else can be seen as an array."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(value, "__dlpack__"):  # which has bf16, and NumPy has not
        return output_of(torch.from_dlpack(value))
    if hasattr(value, "__array__"):
        return output_of(np.asarray(value))
    raise TypeError(f"is a {type(value).__name__}, not an array or a tensor")


def save(outputs: Mapping[str, Output], path: Path) -> None:
    """Writes a safetensors file, largest items first, so that each payload is aligned."""
    order = sorted(outputs, key=lambda name: (-ITEM_SIZES[outputs[name].dtype], name))
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        output = outputs[name]
        begin, end = end, end + len(output.data)
        header[name] = {
            "dtype": output.dtype.upper(),
            "shape": output.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(outputs[name].data)


def _written(dtype: str) -> str:
    if dtype not in _WRITTEN:
        raise TypeError(f"has dtype {dtype}; known are {', '.join(_WRITTEN)}")
    return _WRITTEN[dtype]
