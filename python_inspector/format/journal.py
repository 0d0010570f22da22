"""What a recording has finished so far, for a run that goes on where this one was killed.

Beside the spool of payloads lies a journal: a line that says of which run it is, then one for every
finished checkpoint, with the tensors, traces and warnings that came with it. A line is written once
its payloads are on the disk; what a power failure did to either is found when they are read again.
A line is a checksum of itself and of all before it, and its JSON.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ResumeError
from .folders import partials
from .payload import Payload
from .spool import CHUNK, Spool
from .tensor_table import TENSOR_SPOOL, Key, Promised, Taken, TensorTable

JOURNAL = ".journal"
VERSION = 4
"""Also of where a spool places what came."""
INTERVAL = 1.0
"""Seconds between two writes; so much is lost at most."""
_PROMISED = "promised key"
_DIGITS = 16
"""Of a checksum, in hex."""


@dataclass
class Additions:
    """What came into a recording in one phase of a call, but for weights."""

    tensors: list[tuple[str, Promised]] = field(default_factory=list)
    traces: list[Any] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_json(self, spool: Spool) -> dict[str, Any]:
        """Once `spool` has the payloads."""
        named = [(key, promised.payload) for key, promised in self.tensors]
        return {
            "tensors": [
                [_encoded(key), p.dtype, p.shape, p.sha256, p.bytes, spool.offset(p)]
                for key, p in named
            ],
            "traces": self.traces,
            "warnings": self.warnings,
        }


@dataclass
class Finished:
    """A checkpoint of the run before: the number of the call, what came when it began and when it
    was over, the SHA-256 of the weights that no checkpoint before it has, by key, and of all
    weights of the model, where it was known by then."""

    event: int
    checkpoint: dict[str, Any]
    opened: dict[str, Any]
    closed: dict[str, Any]
    weights: dict[str, str]
    weights_sha256: str | None

    @property
    def tensors(self) -> Iterator[Taken]:
        for part in (self.opened, self.closed):
            yield from taken_of(part)


def taken_of(part: Mapping[str, Any]) -> Iterator[Taken]:
    """The tensors among additions."""
    for key, dtype, shape, sha256, size, offset in part["tensors"]:
        yield Taken(key, Payload(dtype, tuple(shape), sha256, size), offset)


@dataclass(frozen=True)
class Line:
    """A line that is what was written."""

    content: bytes
    checksum: bytes
    end: int
    """Where it ends in the file."""


class LockedFile:
    """The file of a journal, where the next line goes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._checksum = b""
        """Of the last line."""

    def append(self, entries: Iterable[Mapping[str, Any]]) -> None:
        lines = []
        for entry in entries:
            content = json.dumps(entry, separators=(",", ":")).encode()
            self._checksum = _checksum(self._checksum, content)
            lines.append(self._checksum + b" " + content + b"\n")
        text = b"".join(lines)
        while text:
            text = text[os.write(self._descriptor, text) :]
        os.fsync(self._descriptor)

    def go_on_after(self, line: Line) -> None:
        """Removes what comes after it."""
        os.ftruncate(self._descriptor, line.end)
        os.lseek(self._descriptor, line.end, os.SEEK_SET)
        self._checksum = line.checksum

    def close(self) -> None:
        """May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Journal:
    """Writes a journal, beside the run."""

    def __init__(
        self, file: LockedFile, table: TensorTable, before: Sequence[Finished] = ()
    ) -> None:
        """The next line goes into `file` after those of `before`."""
        self.written = len(before)
        """Checkpoints that are in it."""
        self.weights_sha256: str | None = None
        """Of all weights, once it is known."""
        self._file = file
        self._table = table
        self._weights = {key for finished in before for key in finished.weights}
        self._pending: list[tuple[int, dict[str, Any], Additions, Additions]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def append(
        self, event: int, checkpoint: dict[str, Any], opened: Additions, closed: Additions
    ) -> None:
        """A checkpoint is finished; its payloads may still be on their way."""
        with self._changed:
            if self._failed is not None:
                raise self._failed
            self._pending.append((event, checkpoint, opened, closed))
            self._changed.notify_all()

    def close(self, *, discard: bool = False) -> None:
        """Writes what is left, or not; may be called twice. Raises what went wrong with that."""
        with self._changed:
            self._closing = True
            if discard:
                self._pending.clear()
            self._changed.notify_all()
        self._thread.join()
        self._file.close()
        if self._failed is not None and not discard:
            raise self._failed

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                batch, self._pending = self._pending, []
            if not batch:
                return
            try:
                self._write(batch)
            except BaseException as error:
                self._failed = error
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closing, INTERVAL)

    def _write(self, batch: list[tuple[int, dict[str, Any], Additions, Additions]]) -> None:
        spool = self._table.spool
        spool.sync()
        lines = [
            {
                "event": event,
                "opened": opened.to_json(spool),
                "closed": closed.to_json(spool),
                "weights": self._new_weights(checkpoint),
                "weights_sha256": self.weights_sha256,
                "checkpoint": _encoded(checkpoint),
            }
            for event, checkpoint, opened, closed in batch
        ]
        self._file.append(lines)
        self.written += len(lines)

    def _new_weights(self, checkpoint: Mapping[str, Any]) -> dict[str, str]:
        new = {key for key in checkpoint["weights"].values() if key not in self._weights}
        self._weights |= new
        return {key: self._table.weights[key].payload.sha256 for key in sorted(new)}


class Leftover:
    """What a killed process left of a recording. It is nobody else's as long as this lives."""

    def __init__(self, folder: Path, file: LockedFile) -> None:
        self.folder = folder
        self.file = file
        self._lines = list(_whole_lines((folder / JOURNAL).read_bytes()))
        self.head: dict[str, Any] | None = None
        """None: killed before it said of which run it is, or damaged, or of another version."""
        if self._lines:
            self.head = json.loads(self._lines[0].content)

    def close(self) -> None:
        self.file.close()

    @property
    def checkpoints(self) -> int:
        """That are finished, unless their payloads are damaged."""
        return max(0, len(self._lines) - 1)

    def require(self, run: Mapping[str, Any]) -> None:
        """ResumeError where it is of another run."""
        head = self.head or {}
        where, there, here = difference(head.get("run"), run) or ("", None, None)
        if head.get("journal") != VERSION:
            where, there, here = "journal", head.get("journal"), VERSION
        if where:
            raise other_run(self.folder / JOURNAL, where, there, here)

    def finished(self) -> list[Finished]:
        """The checkpoints up to the first of which a line or payload is damaged; the files end with
        the last of them afterwards."""
        last, *lines = self._lines
        found = [
            (Finished(**json.loads(line.content, object_hook=_decoded)), line) for line in lines
        ]
        spool = self.folder / TENSOR_SPOOL
        if not spool.exists() and (saved := self.folder / "tensors.safetensors").exists():
            saved.rename(spool)  # it was killed while it was put in place
        if not spool.exists():
            found = []
        with spool.open("a+b") as file:
            damaged = _damaged(file.fileno(), (t for f, _ in found for t in f.tensors))
            good = []
            for one, line in found:
                if any(taken in damaged for taken in one.tensors):
                    break
                good.append(one)
                last = line
            file.truncate(max((t.offset + t.payload.bytes for f in good for t in f.tensors),
                              default=0))  # fmt: skip
        self.file.go_on_after(last)
        return good

    def clear(self) -> None:
        """Removes what is made anew."""
        for path in self.folder.iterdir():
            if path.name not in (JOURNAL, TENSOR_SPOOL):
                path.unlink()


def begin(folder: Path, run: Mapping[str, Any], files: Mapping[str, Any]) -> LockedFile:
    """A new journal in `folder`, of `run` with the model's own `files`."""
    descriptor = os.open(folder / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    file = LockedFile(descriptor)
    file.append([{"journal": VERSION, "run": dict(run), "files": dict(files)}])
    return file


def find_leftover(out: Path) -> Leftover | None:
    """Of the recording `out`, the one that was written to last; ResumeError where a process that
    still runs has the only one."""
    journals = [folder / JOURNAL for folder in partials(out)]
    journals = [path for path in journals if path.exists()]
    running = None
    for path in sorted(journals, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        file = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            running = path.parent
            continue
        leftover = Leftover(path.parent, LockedFile(file))
        if leftover.head is not None:
            return leftover
        leftover.close()
    if running is not None:
        raise ResumeError(f"{out} is being recorded by a process that still runs ({running})")
    return None


def other_run(source: Path, where: str, there: Any, here: Any) -> ResumeError:
    """That what `source` says of its run differs from this one in the field `where`."""
    return ResumeError(
        f"{source}: {where} is {json.dumps(there)}, this run has {json.dumps(here)}: resume with "
        "what the recording was begun with, or leave out --resume to record anew"
    )


def difference(there: Any, here: Any, where: str = "run") -> tuple[str, Any, Any] | None:
    """The first field in which two JSON values differ, and what they have there."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted({*there, *here}):
            found = difference(there.get(name), here.get(name), f"{where}.{name}")
            if found is not None:
                return found
        return None
    return None if there == here else (where, there, here)


def _whole_lines(text: bytes) -> Iterator[Line]:
    """Up to the first that is torn or damaged, or does not go on from the one before it."""
    checksum, begin = b"", 0
    while (end := text.find(b"\n", begin) + 1) > 0:
        content = text[begin + _DIGITS + 1 : end - 1]
        checksum = _checksum(checksum, content)
        if text[begin:end] != checksum + b" " + content + b"\n":
            return
        yield Line(content, checksum, end)
        begin = end


def _checksum(before: bytes, content: bytes) -> bytes:
    """Of a line that follows one with the checksum `before`."""
    return hashlib.sha256(before + content).hexdigest()[:_DIGITS].encode()


def _encoded(value: Any) -> Any:
    if isinstance(value, Key):
        return {_PROMISED: str(value)}
    if isinstance(value, dict):
        return {name: _encoded(item) for name, item in value.items()}
    return [_encoded(item) for item in value] if isinstance(value, list) else value


def _decoded(value: dict[str, Any]) -> Any:
    return Key(value[_PROMISED]) if value.keys() == {_PROMISED} else value


def _damaged(file: int, tensors: Iterable[Taken]) -> set[Taken]:
    """Those whose bytes in the file have another SHA-256."""

    def is_damaged(taken: Taken) -> bool:
        digest, position = hashlib.sha256(), taken.offset
        end = position + taken.payload.bytes
        while position < end and (data := os.pread(file, min(CHUNK, end - position), position)):
            digest.update(data)
            position += len(data)
        return digest.hexdigest() != taken.payload.sha256

    every = list(dict.fromkeys(tensors))
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        bad = threads.map(is_damaged, every)
        return {taken for taken, is_bad in zip(every, bad, strict=True) if is_bad}
