"""Tensor payloads on their way to a safetensors file.

A `Spool` takes tensors one at a time, hashes each once and writes its bytes to a temporary file, so
that memory stays bounded however long the run is. Large tensors are copied and handed to threads,
which hash and write them beside the run. `save` puts a safetensors header in front: small spools
are copied behind it, largest item first (the order of the reference implementation, in which every
payload is aligned to its item size); in a large one the payloads stay where they are, and the room
that was left in front of them takes the header.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from python_inspector.errors import FormatError
from python_inspector.format.recording import ITEM_SIZES, dtype_name
from python_inspector.format.safetensors_file import read_header

CHUNK = 1 << 20
BESIDE = 1 << 20
"""Bytes from which on a tensor is hashed and written beside the run."""
IN_FLIGHT = 2 << 30
"""Bytes of copies that may wait for that."""
IN_PLACE = 256 << 20
"""Bytes from which on payloads are not copied behind their header."""
HEADER_ROOM = 8 << 20
_ALIGNMENT = 8


@dataclass(frozen=True)
class Payload:
    """One tensor in the spool: bytes [offset, offset + bytes); or in a file of the model's folder,
    whose name that is."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    offset: int
    bytes: int
    model_file: str | None = None


Content = tuple[str, tuple[int, ...], str]
Elsewhere = Callable[[str], str | None]
"""From the SHA-256 of a tensor to the file of the model's folder that holds it."""


class Spool:
    """A temporary file of tensor payloads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = HEADER_ROOM
        self._stored: dict[Content, Payload] = {}
        self._own = 0
        self._failed: BaseException | None = None
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._room = _Room(IN_FLIGHT)

    def add(
        self, t: torch.Tensor, elsewhere: Elsewhere | None = None
    ) -> tuple[Payload, bool] | Future[tuple[Payload, bool]]:
        """Stores `t` (contiguous, logical order) unless its like is here, or `elsewhere`; and
        whether it did. Of a large one, a promise of that."""
        if self._failed is not None:
            raise self._failed
        size = t.numel() * t.element_size()
        if size < BESIDE:
            return self._store(t, elsewhere)
        self._room.take(size)
        own = t.detach().clone(memory_format=torch.contiguous_format)  # the run goes on
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(16, os.cpu_count() or 1))
        future = self._threads.submit(self._store, own, elsewhere)
        future.add_done_callback(lambda done: self._done(done, size))
        return future

    def _done(self, future: Future[tuple[Payload, bool]], size: int) -> None:
        self._room.give(size)
        if not future.cancelled() and self._failed is None:
            self._failed = future.exception()

    def _store(self, t: torch.Tensor, elsewhere: Elsewhere | None) -> tuple[Payload, bool]:
        dtype, data = dtype_name(t.dtype), tensor_bytes(t)
        key = (dtype, tuple(t.shape), hashlib.sha256(data).hexdigest())
        file = None if elsewhere is None else elsewhere(key[2])
        with self._lock:
            if key in self._stored:
                return self._stored[key], False
            payload = Payload(*key, offset=self._size, bytes=data.nbytes, model_file=file)
            self._stored[key] = payload
            if file is None:
                self._own += 1
                self._size += -(-data.nbytes // _ALIGNMENT) * _ALIGNMENT
        if file is None:
            write_all(self._file, data, payload.offset)
        return payload, file is None

    def save(self, path: Path, tensors: Iterable[tuple[str, Payload]]) -> dict[str, Any]:
        """Writes a safetensors file of the named payloads; its size and SHA-256, which for one
        whose payloads stay in place is the header's."""
        named = list(tensors)
        if self._size - HEADER_ROOM >= IN_PLACE and len(named) == self._own:
            entry = self._save_in_place(path, named)
            if entry is not None:
                return entry
        ordered = sorted(named, key=lambda item: -ITEM_SIZES[item[1].dtype])
        with OutputFile(path) as out:
            out.write(memoryview(safetensors_header(ordered)))
            for _, payload in ordered:
                self._copy(payload, out)
        return {"bytes": out.size, "sha256": out.digest.hexdigest()}

    def close(self) -> None:
        """Removes the temporary file; may be called twice."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.path.unlink(missing_ok=True)

    def _save_in_place(self, path: Path, named: list[tuple[str, Payload]]) -> dict[str, Any] | None:
        """None where the header does not fit into its room."""
        items = []
        for name, payload in sorted(named, key=lambda item: item[1].offset):
            items.append((name, payload))
            if gap := -payload.bytes % _ALIGNMENT:  # a file has no holes
                filler = Payload("u8", (gap,), "", 0, gap)
                items.append((f"filler.{name}", filler))
        header = safetensors_header(items, HEADER_ROOM)
        if len(header) != HEADER_ROOM:
            return None
        write_all(self._file, memoryview(header), 0)
        os.ftruncate(self._file, self._size)
        os.fsync(self._file)
        self.path.rename(path)
        return {"bytes": self._size, "header_sha256": hashlib.sha256(header).hexdigest()}

    def _copy(self, payload: Payload, out: OutputFile) -> None:
        position, end = payload.offset, payload.offset + payload.bytes
        while position < end:
            data = os.pread(self._file, min(CHUNK, end - position), position)
            if not data:
                raise OSError(f"{self.path} was truncated while the recording was written")
            out.write(memoryview(data))
            position += len(data)


class _Room:
    """Bytes that may be in use at once; one tensor may always be, whatever its size."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._used == 0 or self._used + size <= self._most)
            self._used += size

    def give(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()


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


def tensor_bytes(t: torch.Tensor) -> memoryview:
    """The tensor's elements as bytes in logical order."""
    flat = t.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def write_all(file: int, data: memoryview, offset: int | None = None) -> None:
    """Writes until all is written, where the file stands or at `offset`: a single call may write
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
    """Where and how a tensor lies in memory."""
    return t.data_ptr(), t.dtype, tuple(t.shape), t.stride()


def identity_of(t: torch.Tensor) -> tuple[Any, ...]:
    """Its place and version: the same as long as nothing was written to it."""
    return *place_of(t), 0 if t.is_inference() else t._version
