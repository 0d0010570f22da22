"""Tensor payloads on their way to a safetensors file.

A `Spool` takes tensors one at a time, hashes each once and appends its bytes to a temporary file,
so that memory stays at one tensor however long the run is. `save` then copies the payloads behind a
safetensors header, largest item first: the order of the reference implementation, in which every
payload is aligned to its item size.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from python_inspector.errors import FormatError
from python_inspector.format.recording import ITEM_SIZES, dtype_name
from python_inspector.format.safetensors_file import read_header

CHUNK = 1 << 20


@dataclass(frozen=True)
class Payload:
    """One tensor in the spool: bytes [offset, offset + bytes)."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    offset: int
    bytes: int


class Spool:
    """An append-only temporary file of tensor payloads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = 0
        self._stored: dict[tuple[str, tuple[int, ...], str], Payload] = {}

    def add(self, t: torch.Tensor) -> tuple[Payload, bool]:
        """Stores `t` (contiguous, logical order) unless its like is here; and whether it did."""
        dtype, data = dtype_name(t.dtype), tensor_bytes(t)
        key = (dtype, tuple(t.shape), hashlib.sha256(data).hexdigest())
        if key in self._stored:
            return self._stored[key], False
        payload = Payload(*key, offset=self._size, bytes=data.nbytes)
        write_all(self._file, data)
        self._size += data.nbytes
        self._stored[key] = payload
        return payload, True

    def save(self, path: Path, tensors: Iterable[tuple[str, Payload]]) -> tuple[int, str]:
        """Writes a safetensors file of the named payloads; returns its size and SHA-256."""
        ordered = sorted(tensors, key=lambda item: -ITEM_SIZES[item[1].dtype])
        with OutputFile(path) as out:
            out.write(memoryview(safetensors_header(ordered)))
            for _, payload in ordered:
                self._copy(payload, out)
        return out.size, out.digest.hexdigest()

    def close(self) -> None:
        """Removes the temporary file; may be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.path.unlink(missing_ok=True)

    def _copy(self, payload: Payload, out: OutputFile) -> None:
        position, end = payload.offset, payload.offset + payload.bytes
        while position < end:
            data = os.pread(self._file, min(CHUNK, end - position), position)
            if not data:
                raise OSError(f"{self.path} was truncated while the recording was written")
            out.write(memoryview(data))
            position += len(data)


class OutputFile:
    """A new file, hashed as it is written and on disk when the `with` block ends."""

    def __init__(self, path: Path) -> None:
        self.digest, self.size = hashlib.sha256(), 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self._file)
        finally:
            os.close(self._file)

    def write(self, data: memoryview) -> None:
        self.digest.update(data)
        self.size += data.nbytes
        write_all(self._file, data)


def safetensors_header(tensors: list[tuple[str, Payload]]) -> bytes:
    """The length and the JSON header of a file that holds these payloads back to back."""
    header: dict[str, Any] = {}
    begin = 0
    for name, payload in tensors:
        end = begin + payload.bytes
        header[name] = {
            "dtype": payload.dtype.upper(),
            "shape": list(payload.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def tensor_bytes(t: torch.Tensor) -> memoryview:
    """The tensor's elements as bytes in logical order."""
    flat = t.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def write_all(file: int, data: memoryview) -> None:
    """os.write until all is written: a single call may write less."""
    data = data.cast("B")
    while data.nbytes:
        data = data[os.write(file, data) :]


def require_same_weights(path: Path, payloads: dict[str, Payload]) -> tuple[int, str]:
    """Size and SHA-256 of a weights file that holds all these; FormatError where it differs."""
    header = read_header(path)
    advice = "record into another folder, or remove the file and record all its recordings again"
    for name, payload in payloads.items():
        if name not in header.tensors:
            raise FormatError(f"{path} exists and has no weight {name}; {advice}")
        entry = header.tensors[name]
        found = (entry.dtype, entry.shape, header.sha256(name))
        if found != (payload.dtype, payload.shape, payload.sha256):
            raise FormatError(
                f"{path} exists and its {name} is {entry.dtype} {list(entry.shape)} with SHA-256 "
                f"{found[2][:12]}, this run's is {payload.dtype} {list(payload.shape)} with "
                f"{payload.sha256[:12]}; {advice}"
            )
    return header.size, header.file_sha256()


def place_of(t: torch.Tensor) -> tuple[Any, ...]:
    """Where and how a tensor lies in memory."""
    return t.data_ptr(), t.dtype, tuple(t.shape), t.stride()


def identity_of(t: torch.Tensor) -> tuple[Any, ...]:
    """Its place and version: the same as long as nothing was written to it."""
    return *place_of(t), 0 if t.is_inference() else t._version
