"""Writes one recording: a folder that is either complete or not there.

Everything goes to `.<name>.partial-<pid>` beside the target and is renamed at the end, so that an
exception, Ctrl-C or a full disk leaves what was there before.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ..errors import FormatError, RecordError, ResumeError
from . import share
from .folders import replace_folder, require_place, sweep
from .generator import Generator
from .journal import (
    JOURNAL,
    Additions,
    Finished,
    Journal,
    Leftover,
    begin,
    find_leftover,
    taken_of,
)
from .kept import (
    is_full_disk,
    lost,
    name_full_disk,
    what_is_kept,
    what_is_lost,
)
from .model_files import ModelFolder
from .payload import OutputFile, require_same_weights
from .recording import (
    FORMAT,
    VERSION,
    Checkpoint,
    Contract,
    plain,
)
from .recording_text import recording_text
from .references import require_stored, with_keys_of
from .same_weights import WeightsBefore, files_of, weights_before
from .summary import Summary
from .tensor_table import TensorTable, Weight

RECORDING = "recording.json"
TENSORS = "tensors.safetensors"
WEIGHTS = "weights.safetensors"

Progress = Callable[[int, int], None]
"""Called with the number of checkpoints and of payload bytes so far."""


class RecordingWriter:
    """Collects tensors and checkpoints of a run; `commit` puts the recording at `out`.

    `weights_path` is None (weights.safetensors inside the folder) or a file in the folder's parent
    that several recordings of a model share. Weights that the files of `model_folder` hold are
    referred to, not stored. As a context manager it aborts unless commit was called.

    `run` says what is recorded, in JSON. With it a journal is kept, so that a process that is
    killed, interrupted or out of disk leaves what is finished; `resume` takes that over, if there
    is any: ResumeError where it is of another run. With `to_be_joined` the recording says of which
    run it is to the process that joins it.
    """

    def __init__(
        self,
        out: Path,
        *,
        weights_path: Path | None = None,
        model_folder: ModelFolder | None = None,
        progress: Progress | None = None,
        run: Mapping[str, Any] | None = None,
        resume: bool = False,
        to_be_joined: bool = False,
    ) -> None:
        self.run = run
        self._to_be_joined = to_be_joined
        self.out = Path(os.path.abspath(out))
        self.weights_path = (
            self.out / WEIGHTS if weights_path is None else Path(os.path.abspath(weights_path))
        )
        require_place(self.out, self.weights_path, RECORDING)
        self._progress = progress
        self.finished: dict[int, Finished] = {}
        """Checkpoints of the run that is resumed, by the number of their calls."""
        self._taken_over = 0
        self._contracts: dict[str, Contract] = {}
        self._traces: dict[tuple[Any, ...], str] = {}
        self._checkpoints: dict[str, dict[str, Any]] = {}
        self._notes: dict[str, Any] = {}
        self._warnings: list[str] = []
        self._new_traces: list[Any] = []
        self._new_warnings: list[str] = []
        self._bytes = 0
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self._partial = self.out.parent / f".{self.out.name}.partial-{os.getpid()}"
        self._files = files_of(model_folder)
        self._before: WeightsBefore | None = None
        leftover = find_leftover(self.out) if resume and run is not None else None
        self._table: TensorTable
        self._journal: Journal | None = None
        if leftover is None:
            self._begin(model_folder, run)
        else:
            assert run is not None
            self._resume(leftover, model_folder, run)
        self._open = True

    def _begin(self, model_folder: ModelFolder | None, run: Mapping[str, Any] | None) -> None:
        sweep(self.out)
        self._partial.mkdir()
        self._table = TensorTable(self._partial, model_folder, self._advance)
        if run is not None:
            self._journal = Journal(begin(self._partial, run, self._files), self._table)

    def _resume(
        self, leftover: Leftover, model_folder: ModelFolder | None, run: Mapping[str, Any]
    ) -> None:
        try:
            leftover.require(run)
        except ResumeError:
            leftover.close()
            raise
        sweep(self.out, spare=leftover.folder)
        finished = leftover.finished()
        self._before = weights_before(leftover, finished) if finished else None
        leftover.clear()
        leftover.folder.rename(self._partial)
        self.finished = {one.event: one for one in finished}
        self._table = TensorTable(self._partial, model_folder, self._advance, reopen=True)
        self._journal = Journal(leftover.file, self._table, finished)

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        if error is not None and self._open:
            name_full_disk(error, self._partial)
            if self._may_go_on(error):
                return self._suspend(error)
        self.abort()

    def weights_are(self, sha256: str) -> None:
        """That of all weights is known, to a run that resumes this one."""
        if self._journal is not None:
            self._journal.weights_sha256 = sha256

    def require_weights(self, sha256: Callable[[], str]) -> None:
        """ResumeError where the run before had others (same_weights.py)."""
        if self._before is not None:
            self._before.require(self.journal_path, self._files, sha256)

    def generated(self, t: torch.Tensor, generator: Generator) -> None:
        """Declares that `generator` makes `t`: where this very tensor is used, its payload is not
        stored. The writer keeps it alive."""
        self._table.generated(t, generator)

    def tensor(self, t: torch.Tensor) -> str:
        """The key of `t`'s content in this run's file; stores it if it is new."""
        return self._table.tensor(t)

    def hashed(
        self, dtype: str, shape: Sequence[int], sha256: str, read: Callable[[], memoryview]
    ) -> str:
        """The key of a tensor with this content, which `read` gives if it is not stored."""
        return self._table.hashed(dtype, tuple(shape), sha256, read)

    def weight(self, name: str, t: torch.Tensor) -> str:
        """The key of a weight by its full HF name; a tied one gets the key of its first name."""
        return self._table.weight(name, t)

    def contract(self, name: str, contract: Contract) -> None:
        """Names a contract; the same name must always mean the same."""
        if self._contracts.setdefault(name, contract) != contract:
            raise FormatError(f"contract {name} is {self._contracts[name]} already, not {contract}")

    @property
    def inside(self) -> frozenset[str]:
        """What the contracts say of what happens inside."""
        return frozenset(word for it in self._contracts.values() for word in it.inside)

    def trace(self, operations: Sequence[Mapping[str, Any]]) -> str:
        """The key of a list of operations; equal lists share one."""
        content = tuple(tuple(_hashable(entry).items()) for entry in operations)
        if content not in self._traces:
            self._traces[content] = f"p{len(self._traces)}"
            self._new_traces.append(operations)
        return self._traces[content]

    def checkpoint(self, c: Checkpoint) -> None:
        """Appends a checkpoint; every tensor key and the contract it names must exist."""
        if c.id in self._checkpoints:
            raise FormatError(f"checkpoint {c.id} is already recorded")
        if c.contract not in self._contracts:
            raise FormatError(f"{c.id}: contract {c.contract} is not declared")
        if c.trace is not None and c.trace not in self._traces.values():
            raise FormatError(f"{c.id}: trace {c.trace} is not stored")
        require_stored(c, self._table.shape)
        self._checkpoints[c.id] = c.to_json()
        self._advance(0)

    def note(self, **values: Any) -> None:
        """Adds values to provenance.notes."""
        self._notes |= plain(values, "note")

    def warn(self, text: str) -> None:
        """Adds a warning to the provenance, once."""
        if text not in self._warnings:
            self._warnings.append(text)
            self._new_warnings.append(text)

    def additions(self) -> Additions:
        """What came since the last time that this was asked."""
        new = Additions(self._table.new_tensors, self._new_traces, self._new_warnings)
        self._table.new_tensors, self._new_traces, self._new_warnings = [], [], []
        return new

    def keep(self, event: int, id: str, opened: Additions, closed: Additions) -> None:
        """Checkpoint `id` is finished, and need not be made again."""
        if self._journal is not None:
            self._journal.append(event, self._checkpoints[id], opened, closed)

    def take_over(self, part: Mapping[str, Any]) -> None:
        """The additions of a finished checkpoint, but for weights, which come as ever. FormatError
        where they do not go on from what is here."""
        for taken in taken_of(part):
            self._table.take_over(taken)
        for operations in part["traces"]:
            self.trace(operations)
        for text in part["warnings"]:
            self.warn(text)

    @property
    def journal_path(self) -> Path:
        """Where the journal is as long as nothing is committed."""
        return self._partial / JOURNAL

    def stored_weight(self, key: str) -> Weight:
        """The weight with this key."""
        return self._table.weights[key]

    def take_over_checkpoint(self, checkpoint: dict[str, Any], *, before: bool = True) -> None:
        """A finished one, of the run `before` this or of one beside it; what it names is here."""
        if checkpoint["id"] in self._checkpoints:
            raise FormatError(f"checkpoint {checkpoint['id']} is already recorded")
        self._checkpoints[checkpoint["id"]] = checkpoint
        self._taken_over += before
        self._advance(0)

    def commit(self, header: dict[str, Any]) -> Summary:
        """Writes the files and puts the recording in place.

        `header` has name, provenance, config and network. Raises FormatError where it is incomplete
        or a shared weights file differs, OSError where the disk fails; then nothing of this
        recording remains, or, where there is a journal, what a run can resume.
        """
        if not self._open:
            raise FormatError(f"{self.out} is committed or aborted already")
        created_weights = False
        try:
            start = time.perf_counter()
            self._settle()
            if self._journal is not None:
                self._journal.close()
            files = {"tensors": self._table.save_tensors(self._partial / TENSORS)}
            weights, shared = self._save_weights()
            if weights is not None:
                files["weights"] = weights
            size = self._save_json(header, files)
            if self._to_be_joined and self.run is not None:
                share.save(self._partial, self.run)
            self._table.close()
            created_weights = self._publish_weights(weights is not None and not shared)
            (self._partial / JOURNAL).unlink(missing_ok=True)
            replace_folder(self._partial, self.out)
            self._open = False
        except BaseException as error:
            if created_weights:
                self.weights_path.unlink(missing_ok=True)
            if not self._may_go_on(error):
                self.abort()
            raise
        return Summary(
            path=self.out,
            checkpoints=len(self._checkpoints),
            taken_over=self._taken_over,
            tensors=len(self._table),
            json_bytes=size,
            tensor_bytes=files["tensors"]["bytes"],
            weight_bytes=0 if weights is None else weights["bytes"],
            weights_path=None if weights is None else self.weights_path,
            weights_shared=shared,
            hash_and_spool_seconds=self._table.seconds,
            commit_seconds=time.perf_counter() - start,
        )

    def _settle(self) -> None:
        """Of tensors with the same content one is left."""
        if new := self._table.settle():
            self._checkpoints = {
                id: with_keys_of(checkpoint, lambda key: new.get(key, str(key)))
                for id, checkpoint in self._checkpoints.items()
            }

    def abort(self) -> None:
        """Removes everything of this recording; does nothing after commit."""
        if self._open:
            self._open = False
            self._table.close()
            if self._journal is not None:
                self._journal.close(discard=True)
            shutil.rmtree(self._partial, ignore_errors=True)

    def _suspend(self, error: BaseException) -> None:
        """Leaves what is finished for a run that resumes; a note on `error` says so."""
        assert self._journal is not None
        with suppress(Exception):  # what is not in the journal is not finished
            self._journal.close()
        written, missing = self._journal.written, lost(self._partial, TENSORS)
        if not written or missing is not None:
            self.abort()
            if missing is not None and written:
                error.add_note(what_is_lost(written, missing))
            return
        self._open = False
        self._table.close(keep=True)
        error.add_note(what_is_kept(written, self._partial, full=is_full_disk(error)))

    def _may_go_on(self, error: BaseException) -> bool:
        """Whether the run might not end like that again."""
        refused = isinstance(error, (RecordError, FormatError))
        return self._journal is not None and (isinstance(error, ResumeError) or not refused)

    def _advance(self, size: int) -> None:
        self._bytes += size
        if self._progress is not None:
            self._progress(len(self._checkpoints), self._bytes)

    def _save_weights(self) -> tuple[dict[str, Any] | None, bool]:
        """The entry of the weights file, and whether a file in place already holds the weights."""
        payloads = self._table.stored_weights()
        if not payloads:
            return None, False
        inside = self.weights_path.parent == self.out
        path = self.weights_path.name if inside else f"../{self.weights_path.name}"
        if not inside and self.weights_path.exists():
            size, digest = require_same_weights(self.weights_path, payloads)
            return {"path": path, "bytes": size, "sha256": digest}, True
        saved = self._table.save_weights(self._partial / self.weights_path.name)
        return {"path": path, **saved}, False

    def _save_json(self, header: dict[str, Any], files: dict[str, Any]) -> int:
        if missing := {"name", "provenance", "config", "network"} - header.keys():
            raise FormatError(f"the header lacks {', '.join(sorted(missing))}")
        recording = {
            "format": FORMAT,
            "version": VERSION,
            "name": header["name"],
            "provenance": header["provenance"]
            | {"notes": header["provenance"].get("notes", {}) | self._notes}
            | {"warnings": [*header["provenance"].get("warnings", []), *self._warnings]},
            "config": header["config"],
            "network": header["network"],
            "contracts": {name: item.to_json() for name, item in self._contracts.items()},
            "traces": {
                key: {"operations": [dict(entry) for entry in content]}
                for content, key in self._traces.items()
            },
            "files": files,
            **self._table.model_files(),
            "tensors": self._table.to_json(),
            "checkpoints": list(self._checkpoints.values()),
        }
        text = recording_text(recording).encode()
        with OutputFile(self._partial / RECORDING) as out:
            out.write(memoryview(text))
        return len(text)

    def _publish_weights(self, new: bool) -> bool:
        """Moves a new shared weights file to its place; true if there was something to move."""
        if not new or self.weights_path.parent == self.out:
            return False
        (self._partial / self.weights_path.name).replace(self.weights_path)
        return True


def _hashable(value: Any) -> Any:
    """What JSON made of tuples, as tuples."""
    if isinstance(value, dict):
        return {name: _hashable(item) for name, item in value.items()}
    return tuple(_hashable(item) for item in value) if isinstance(value, list) else value
