"""Tensor payloads on their way to a safetensors file.

A `Spool` takes tensors one at a time, hashes each once and writes its bytes to a temporary file, so
that memory stays bounded however long the run is. Large tensors are copied and handed to threads,
which hash and write them during the run; where a payload is put depends only on the order in which
tensors came, not on the threads. On request, large ones of the same bytes and dtype are stored
once, in whatever shapes they come: what attention gives is what its projection takes. `save` puts
a safetensors header in front: small spools are copied behind it, largest item first (the order of
the reference implementation, in which every payload is aligned to its item size); in a large one
the payloads stay where they are, and the room that was left in front of them takes the header.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .host_copy import HostCopy
from .payload import (
    OutputFile,
    Payload,
    payload_of,
    safetensors_header,
    tensor_bytes,
    write_all,
)
from .recording import ITEM_SIZES

CHUNK = 1 << 20
BESIDE = 1 << 20
"""Bytes from which on a tensor is large: it is hashed and written during the run, and may share its
place. Small recordings can so be read by older readers, which do not know of that."""
IN_FLIGHT = 2 << 30
"""Bytes of copies that may wait for that."""
IN_PLACE = 256 << 20
"""Bytes from which on payloads are not copied behind their header."""
HEADER_ROOM = 8 << 20
_ALIGNMENT = 8

Elsewhere = Callable[[str], str | None]
"""From the SHA-256 of a tensor to the file of the model's folder that holds it."""


@dataclass
class _Entry:
    """A tensor on its way; its payload is None until it is hashed."""

    payload: Payload | None = None
    data: memoryview | bytes | None = None
    """None where its like is in the file already."""
    offset: int | None = None
    """Where it is in the file."""
    room: int = 0
    stored: Future[Payload] = field(default_factory=Future)


class Spool:
    """A temporary file of tensor payloads, in the order in which they were added."""

    def __init__(self, path: Path, *, shares: bool = False) -> None:
        """`shares`: whether large payloads of the same bytes are stored once."""
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = HEADER_ROOM
        self._offsets: dict[Payload, int] = {}
        self._shares = shares
        self._owners: dict[tuple[str, str, int], Payload] = {}
        """Large payloads that have a place of their own, by dtype, SHA-256 and size."""
        self._shared: dict[Payload, Payload] = {}
        """The others, each with the one whose place it shares."""
        self._queue: deque[_Entry] = deque()
        """What has no place yet, because something before it is being hashed."""
        self._unwritten: set[Future[Payload]] = set()
        self._failed: BaseException | None = None
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._room = _Room(IN_FLIGHT)

    def add(self, t: torch.Tensor, elsewhere: Elsewhere | None = None) -> Payload | Future[Payload]:
        """Stores `t` (contiguous, logical order) unless its like is here, or `elsewhere`. Of a
        large one, a promise of that."""
        if self._failed is not None:
            raise self._failed
        size = t.numel() * t.element_size()
        if size < BESIDE:
            return self._add_small(t, elsewhere)
        self._room.take(size)
        own = HostCopy(t)
        entry = _Entry(room=size)
        self._enter(entry)
        self._pool().submit(self._hash, entry, own, elsewhere)
        return entry.stored

    def owner(self, payload: Payload) -> Payload | None:
        """The payload of the same bytes, in another shape, that came first: it has the place, and
        its name is that of the bytes. None where that is this one. Once `save` is done."""
        return self._shared.get(payload)

    def wait(self) -> None:
        """Until all that was added is in the file."""
        with self._lock:
            waiting = set(self._unwritten)
        for future in wait(waiting, return_when=FIRST_EXCEPTION).done:
            future.result()
        if self._failed is not None:
            raise self._failed

    def save(self, path: Path, tensors: Iterable[tuple[str, Payload]]) -> dict[str, Any]:
        """Writes a safetensors file of the named payloads that have a place of their own; its size
        and SHA-256, which for one whose payloads stay in place is the header's."""
        self.wait()
        named = [item for item in tensors if item[1] not in self._shared]
        places = len(self._offsets) - len(self._shared)
        if self._size - HEADER_ROOM >= IN_PLACE and len(named) == places:
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
            self._fail(CancelledError())
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.path.unlink(missing_ok=True)

    def _add_small(self, t: torch.Tensor, elsewhere: Elsewhere | None) -> Payload:
        data = tensor_bytes(t)
        payload = payload_of(t, data, elsewhere)
        if payload.model_file is None and payload not in self._offsets:
            own = bytes(data) if self._queue else data  # it may wait while the run continues
            self._enter(_Entry(payload, own))
            self._drain()
            if self._failed is not None:
                raise self._failed
        return payload

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(16, os.cpu_count() or 1))
        return self._threads

    def _enter(self, entry: _Entry) -> None:
        with self._lock:
            self._queue.append(entry)
            self._unwritten.add(entry.stored)
        if self._failed is not None:  # while this one came
            self._fail(self._failed)

    def _hash(self, entry: _Entry, own: HostCopy, elsewhere: Elsewhere | None) -> None:
        try:
            t = own.take()
            entry.data = tensor_bytes(t)
            entry.payload = payload_of(t, entry.data, elsewhere)
        except BaseException as error:
            self._fail(error)
        else:
            self._drain(entry)

    def _drain(self, own: _Entry | None = None) -> None:
        """Gives places to what is hashed, in its order, and writes it: `own` and what is small
        itself, the rest in other threads."""
        try:
            with self._lock:
                ready = []
                while self._queue and self._queue[0].payload is not None:
                    ready.append(self._queue.popleft())
                    self._place(ready[-1])
            for entry in ready:
                if entry is own or not entry.room:
                    self._write(entry)
                else:
                    self._pool().submit(self._write, entry)
        except BaseException as error:
            self._fail(error)

    def _place(self, entry: _Entry) -> None:
        """Only what is new has data and a place afterwards."""
        payload = entry.payload
        assert payload is not None
        if payload.model_file is not None or payload in self._offsets:
            entry.data = None
        elif (owner := self._owner_of(payload)) is not None:
            entry.data = None
            self._shared[payload] = owner
            self._offsets[payload] = self._offsets[owner]
        else:
            self._offsets[payload] = entry.offset = self._size
            self._size += -(-payload.bytes // _ALIGNMENT) * _ALIGNMENT

    def _owner_of(self, payload: Payload) -> Payload | None:
        """That of the place where a new payload belongs; None where it needs its own."""
        if not self._shares or payload.bytes < BESIDE:
            return None
        content = (payload.dtype, payload.sha256, payload.bytes)
        owner = self._owners.setdefault(content, payload)
        return None if owner is payload else owner

    def _write(self, entry: _Entry) -> None:
        try:
            if entry.data is not None and entry.offset is not None:
                write_all(self._file, memoryview(entry.data), entry.offset)
            self._resolve(entry.stored, entry.payload)
        except BaseException as error:
            self._fail(error)
        finally:
            entry.data = None
            self._room.give(entry.room)

    def _resolve(self, stored: Future[Payload], payload: Payload | None) -> None:
        """A promise is kept, or, without a payload, broken."""
        with self._lock:
            if stored not in self._unwritten:
                return
            self._unwritten.discard(stored)
            if payload is not None:
                stored.set_result(payload)
            else:
                stored.set_exception(self._failed or CancelledError())

    def _fail(self, error: BaseException) -> None:
        """Breaks all promises: after a failure nothing has its place."""
        with self._lock:
            self._failed = self._failed or error
            waiting, dropped = set(self._unwritten), list(self._queue)
            self._queue.clear()
        for stored in waiting:
            self._resolve(stored, None)
        for entry in dropped:
            self._room.give(entry.room)

    def _save_in_place(self, path: Path, named: list[tuple[str, Payload]]) -> dict[str, Any] | None:
        """None where the header does not fit into its room."""
        items = []
        for name, payload in sorted(named, key=lambda item: self._offsets[item[1]]):
            items.append((name, payload))
            if gap := -payload.bytes % _ALIGNMENT:  # a file has no holes
                items.append((f"filler.{name}", Payload("u8", (gap,), "", gap)))
        header = safetensors_header(items, HEADER_ROOM)
        if len(header) != HEADER_ROOM:
            return None
        write_all(self._file, memoryview(header), 0)
        os.ftruncate(self._file, self._size)
        os.fsync(self._file)
        self.path.rename(path)
        return {"bytes": self._size, "header_sha256": hashlib.sha256(header).hexdigest()}

    def _copy(self, payload: Payload, out: OutputFile) -> None:
        position = self._offsets[payload]
        end = position + payload.bytes
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
