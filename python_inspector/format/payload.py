"""The content of tensors, and safetensors files of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import FormatError
from .host_copy import bytes_of
from .recording import dtype_name
from .safetensors_file import read_header


@dataclass(frozen=True)
class Payload:
    """The content of a tensor; `model_file` is the file of the model's folder that holds it, None
    for one that a spool holds."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    bytes: int
    model_file: str | None = None


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


def safetensors_header(tensors: list[tuple[str, Payload]], room: int = 0) -> bytes:
    """The length and the JSON header of a file that holds these payloads back to back, filled up to
    `room` bytes if it is shorter."""
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
    text += b" " * max(-len(text) % 8, room - 8 - len(text))
    return len(text).to_bytes(8, "little") + text


def payload_of(
    t: torch.Tensor, data: memoryview | bytes, elsewhere: Callable[[str], str | None] | None
) -> Payload:
    """The content of `t`, whose bytes are `data`; `elsewhere` says which file of the model's folder
    holds a SHA-256.
    """
    digest = hashlib.sha256(data).hexdigest()
    file = None if elsewhere is None else elsewhere(digest)
    return Payload(dtype_name(t.dtype), tuple(t.shape), digest, len(data), file)


def tensor_bytes(t: torch.Tensor) -> memoryview:
    """The tensor's elements as bytes in logical order."""
    return bytes_of(t.detach().to("cpu")).numpy().data


def write_all(file: int, data: memoryview, offset: int | None = None) -> None:
    """Writes until all is written, at the file's position or at `offset`: a single call may write
    less."""
    data = data.cast("B")
    while data.nbytes:
        if offset is None:
            data = data[os.write(file, data) :]
        else:
            written = os.pwrite(file, data, offset)
            offset, data = offset + written, data[written:]


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
    """Where a tensor is in memory, and how it is laid out."""
    return t.data_ptr(), t.dtype, tuple(t.shape), t.stride()


def identity_of(t: torch.Tensor) -> tuple[Any, ...]:
    """Its place and version: the same as long as nothing was written to it."""
    return *place_of(t), 0 if t.is_inference() else t._version
