"""What a recording has finished so far, for a run that goes on where this one was killed.

Beside the spool of payloads lies a journal: a line that says of which run it is, then one for every
finished checkpoint, with the tensors, traces and warnings that came with it. A line is written once
its payloads are on the disk; what a power failure did to either is found when they are read again.
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

from python_inspector.errors import ResumeError
from python_inspector.format.folders import partials
from python_inspector.format.payload import Payload
from python_inspector.format.spool import CHUNK, Spool
from python_inspector.format.tensor_table import TENSOR_SPOOL, Key, Promised, Taken, TensorTable

JOURNAL = ".journal"
VERSION = 2
"""Also of where a spool places what came."""
INTERVAL = 1.0
"""Seconds between two writes; so much is lost at most."""
_PROMISED = "promised key"


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
    was over, and the SHA-256 of the weights that no checkpoint before it has, by key."""

    event: int
    checkpoint: dict[str, Any]
    opened: dict[str, Any]
    closed: dict[str, Any]
    weights: dict[str, str]

    @property
    def tensors(self) -> Iterator[Taken]:
        for part in (self.opened, self.closed):
            yield from taken_of(part)


def taken_of(part: Mapping[str, Any]) -> Iterator[Taken]:
    """The tensors among additions."""
    for key, dtype, shape, sha256, size, offset in part["tensors"]:
        yield Taken(key, Payload(dtype, tuple(shape), sha256, size), offset)


class Journal:
    """Writes a journal, beside the run."""

    def __init__(self, file: int, table: TensorTable, before: Sequence[Finished] = ()) -> None:
        """`file`: the journal, locked, where the next line goes, after those of `before`."""
        self.written = len(before)
        """Checkpoints that are in it."""
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
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
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
                "checkpoint": _encoded(checkpoint),
            }
            for event, checkpoint, opened, closed in batch
        ]
        _append(self._file, lines)
        self.written += len(lines)

    def _new_weights(self, checkpoint: Mapping[str, Any]) -> dict[str, str]:
        new = {key for key in checkpoint["weights"].values() if key not in self._weights}
        self._weights |= new
        return {key: self._table.weights[key].payload.sha256 for key in sorted(new)}


class Leftover:
    """What a killed process left of a recording. It is nobody else's as long as this lives."""

    def __init__(self, folder: Path, file: int) -> None:
        self.folder = folder
        self.file = file
        self._text = (folder / JOURNAL).read_bytes()
        self._end = self._text.find(b"\n") + 1
        try:
            self.head = json.loads(self._text[: self._end])
        except ValueError:
            self.head = None  # killed before it said of which run it is, or damaged

    def close(self) -> None:
        os.close(self.file)

    @property
    def checkpoints(self) -> int:
        """That are finished, unless what they consist of is damaged."""
        return max(0, self._text.count(b"\n") - 1)

    def require(self, run: Mapping[str, Any]) -> None:
        """ResumeError where it is of another run."""
        head = self.head
        where, there, here = difference(head.get("run"), run) or ("", None, None)
        if head.get("journal") != VERSION:
            where, there, here = "journal", head.get("journal"), VERSION
        if where:
            raise ResumeError(
                f"{self.folder / JOURNAL}: {where} is {json.dumps(there)}, this run has "
                f"{json.dumps(here)}: resume with what the recording was begun with, or leave out "
                "--resume to record anew"
            )

    def finished(self) -> list[Finished]:
        """The checkpoints up to the first of which a line or payload is damaged; the files end with
        the last of them afterwards."""
        found = list(self._lines())
        spool = self.folder / TENSOR_SPOOL
        if not spool.exists() and (saved := self.folder / "tensors.safetensors").exists():
            saved.rename(spool)  # it was killed while it was put in place
        if not spool.exists():
            found = []
        with spool.open("a+b") as file:
            damaged = _damaged(file.fileno(), (t for f, _ in found for t in f.tensors))
            good = []
            for one, end in found:
                if any(taken in damaged for taken in one.tensors):
                    break
                good.append(one)
                self._end = end
            file.truncate(max((t.offset + t.payload.bytes for f in good for t in f.tensors),
                              default=0))  # fmt: skip
        os.ftruncate(self.file, self._end)
        os.lseek(self.file, self._end, os.SEEK_SET)
        return good

    def clear(self) -> None:
        """Removes what is made anew."""
        for path in self.folder.iterdir():
            if path.name not in (JOURNAL, TENSOR_SPOOL):
                path.unlink()

    def _lines(self) -> Iterator[tuple[Finished, int]]:
        """With where each ends; up to the first that is torn."""
        end = self._end
        for line in self._text[end:].splitlines(keepends=True):
            end += len(line)
            try:
                entry = json.loads(line, object_hook=_decoded) if line.endswith(b"\n") else None
                finished = None if entry is None else Finished(**entry)
            except (ValueError, TypeError):
                finished = None
            if finished is None:
                return
            yield finished, end


def begin(folder: Path, run: Mapping[str, Any]) -> int:
    """A new journal in `folder`, of `run`; the locked file."""
    file = os.open(folder / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    fcntl.flock(file, fcntl.LOCK_EX)
    _append(file, [{"journal": VERSION, "run": dict(run)}])
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
        leftover = Leftover(path.parent, file)
        if isinstance(leftover.head, dict):
            return leftover
        leftover.close()
    if running is not None:
        raise ResumeError(f"{out} is being recorded by a process that still runs ({running})")
    return None


def difference(there: Any, here: Any, where: str = "run") -> tuple[str, Any, Any] | None:
    """The first field in which two JSON values differ, and what they have there."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted({*there, *here}):
            found = difference(there.get(name), here.get(name), f"{where}.{name}")
            if found is not None:
                return found
        return None
    return None if there == here else (where, there, here)


def _append(file: int, lines: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    while text:
        text = text[os.write(file, text) :]
    os.fsync(file)


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
