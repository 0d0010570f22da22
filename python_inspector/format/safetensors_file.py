"""Reads a safetensors file with suspicion: its header is checked before any payload is touched."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from .recording import ITEM_SIZES

if TYPE_CHECKING:
    import torch

HEADER_LIMIT = 100_000_000


@dataclass(frozen=True)
class Entry:
    """A tensor of the file: bytes [begin, end) after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class SafetensorsFile:
    """The checked header of a file, and its payloads on demand."""

    path: Path
    size: int
    payload: int
    """Offset of the first payload byte in the file."""
    tensors: dict[str, Entry]

    def read(self, name: str) -> torch.Tensor:
        """A copy of the named tensor."""
        import torch  # here, because headers are read without it, too

        from .recording import TORCH_DTYPES

        entry = self.tensors[name]
        data = bytearray(self._bytes(entry))
        if not data:
            return torch.empty(entry.shape, dtype=TORCH_DTYPES[entry.dtype])
        return torch.frombuffer(data, dtype=TORCH_DTYPES[entry.dtype]).reshape(entry.shape)

    def payload_of(self, name: str) -> bytes:
        """The named tensor's payload bytes."""
        return self._bytes(self.tensors[name])

    def sha256(self, name: str) -> str:
        """SHA-256 of the named tensor's payload bytes."""
        return hashlib.sha256(self.payload_of(name)).hexdigest()

    def file_sha256(self) -> str:
        """SHA-256 of the whole file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _bytes(self, entry: Entry) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.payload + entry.begin)
            return file.read(entry.end - entry.begin)


def read_header(path: Path) -> SafetensorsFile:
    """Reads and checks the header; FormatError names the file and what is wrong."""
    if not path.is_file():
        raise FormatError(f"{path} is {'no regular file' if path.exists() else 'missing'}")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, HEADER_LIMIT):
            raise FormatError(f"{path}: header of {length} bytes in a file of {size} bytes")
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise FormatError(f"{path}: header is a {type(header).__name__}, not an object")
    header.pop("__metadata__", None)
    tensors = {name: _entry(f"{path}: {name}", value) for name, value in header.items()}
    _check_layout(path, tensors, size - 8 - length)
    return SafetensorsFile(path, size, 8 + length, tensors)


def _entry(where: str, value: Any) -> Entry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{where}: expected dtype, shape and data_offsets")
    dtype = str(value["dtype"]).lower()
    if dtype not in ITEM_SIZES:
        raise FormatError(f"{where}: dtype {value['dtype']} is not one of this format's")
    shape, offsets = _sizes(where, value["shape"]), _sizes(where, value["data_offsets"])
    if len(offsets) != 2:
        raise FormatError(f"{where}: data_offsets has {len(offsets)} numbers, not 2")
    begin, end = offsets
    expected = math.prod(shape) * ITEM_SIZES[dtype]
    if end - begin != expected:
        raise FormatError(
            f"{where}: {dtype} {list(shape)} is {expected} bytes, data_offsets span {end - begin}"
        )
    return Entry(dtype, shape, begin, end)


def _sizes(where: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise FormatError(f"{where}: {value!r} is not a list of sizes")
    return tuple(value)


def _check_layout(path: Path, tensors: dict[str, Entry], payload: int) -> None:
    """Payloads must fill the file without hole or overlap."""
    position = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            raise FormatError(f"{path}: {name} begins at {entry.begin}, expected {position}")
        position = entry.end
    if position != payload:
        raise FormatError(f"{path}: tensors end at {position}, the file's payload at {payload}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {repeated!r} appears twice")
    return result
