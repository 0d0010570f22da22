"""Writes one recording: a folder that is either complete or not there.

Everything goes to `.<name>.partial-<pid>` next to the target and is renamed at the end, so that an
exception, Ctrl-C or a full disk leaves what was there before.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from ..errors import FormatError
from .folders import name_full_disk, replace_folder, require_place, sweep
from .generator import Generator
from .model_files import ModelFolder
from .payload import OutputFile, require_same_weights
from .recording import (
    FORMAT,
    LATEST,
    VERSION,
    Checkpoint,
    Contract,
    is_recorded_alone,
    plain,
)
from .recording_text import recording_text
from .references import require_stored, with_keys_of
from .summary import Summary
from .tensor_table import TensorTable

RECORDING = "recording.json"
TENSORS = "tensors.safetensors"
WEIGHTS = "weights.safetensors"

Progress = Callable[[int, int], None]
"""Called with the number of checkpoints and of payload bytes so far."""


class TakesTensors(Protocol):
    """What gives tensors and traces their keys."""

    def tensor(self, t: torch.Tensor) -> str: ...

    def trace(self, operations: Sequence[Mapping[str, Any]]) -> str: ...


class RecordingWriter:
    """Collects tensors and checkpoints of a run; `commit` puts the recording at `out`.

    `weights_path` is None (weights.safetensors inside the folder) or a file in the folder's parent
    that several recordings of a model share. Weights that the files of `model_folder` hold are
    referred to, not stored. As a context manager it aborts unless commit was called.
    """

    def __init__(
        self,
        out: Path,
        *,
        weights_path: Path | None = None,
        model_folder: ModelFolder | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.out = Path(os.path.abspath(out))
        self.weights_path = (
            self.out / WEIGHTS if weights_path is None else Path(os.path.abspath(weights_path))
        )
        require_place(self.out, self.weights_path, RECORDING)
        self._progress = progress
        self._contracts: dict[str, Contract] = {}
        self._traces: dict[tuple[Any, ...], str] = {}
        self._checkpoints: dict[str, dict[str, Any]] = {}
        self._notes: dict[str, Any] = {}
        self._warnings: list[str] = []
        self._bytes = 0
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self._partial = self.out.parent / f".{self.out.name}.partial-{os.getpid()}"
        sweep(self.out)
        self._partial.mkdir()
        self._table = TensorTable(self._partial, model_folder, self._advance)
        self._open = True

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        if error is not None and self._open:
            name_full_disk(error, self._partial)
        self.abort()

    def generated(self, t: torch.Tensor, generator: Generator) -> None:
        """Declares that `generator` makes `t`: where this very tensor is used, its payload is not
        stored. The writer keeps it alive."""
        self._table.generated(t, generator)

    def tensor(self, t: torch.Tensor) -> str:
        """The key of `t`'s content in this run's file; stores it if it is new."""
        return self._table.tensor(t)

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
        return self._traces[content]

    def checkpoint(self, c: Checkpoint) -> None:
        """Appends a checkpoint; every tensor key and the contract it names must exist."""
        if c.id in self._checkpoints:
            raise FormatError(f"checkpoint {c.id} is already recorded")
        if c.contract not in self._contracts:
            raise FormatError(f"{c.id}: contract {c.contract} is not declared")
        for trace in (c.trace, *(output.trace for output in c.outputs.values())):
            if trace is not None and trace not in self._traces.values():
                raise FormatError(f"{c.id}: trace {trace} is not stored")
        require_stored(c, self._table.shape)
        self.entry(c.to_json())

    def entry(self, checkpoint: dict[str, Any]) -> None:
        """Appends a checkpoint in JSON, which is known to be complete."""
        self._checkpoints[checkpoint["id"]] = checkpoint
        self._advance(0)

    def note(self, **values: Any) -> None:
        """Adds values to provenance.notes."""
        self._notes |= plain(values, "note")

    def warn(self, text: str) -> None:
        """Adds a warning to the provenance, once."""
        if text not in self._warnings:
            self._warnings.append(text)

    def commit(self, header: dict[str, Any]) -> Summary:
        """Writes the files and puts the recording in place.

        `header` has name, provenance, config and network. Raises FormatError where it is incomplete
        or a shared weights file differs, OSError where the disk fails; then nothing of this
        recording remains.
        """
        if not self._open:
            raise FormatError(f"{self.out} is committed or aborted already")
        created_weights = False
        try:
            start = time.perf_counter()
            self._settle()
            files = {"tensors": self._table.save_tensors(self._partial / TENSORS)}
            weights, shared = self._save_weights()
            if weights is not None:
                files["weights"] = weights
            size = self._save_json(header, files)
            self._table.close()
            created_weights = self._publish_weights(weights is not None and not shared)
            replace_folder(self._partial, self.out)
            self._open = False
        except BaseException as error:
            if created_weights:
                self.weights_path.unlink(missing_ok=True)
            name_full_disk(error, self._partial)
            self.abort()
            raise
        return Summary(
            path=self.out,
            checkpoints=len(self._checkpoints),
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
            shutil.rmtree(self._partial, ignore_errors=True)

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
        alone = (it for it in self._checkpoints.values() if it["block"] != "module")
        new = any(is_recorded_alone(it["block"], it["params"]) for it in alone)
        new = new or self._table.has_codes
        recording = {
            "format": FORMAT,
            "version": LATEST if new else VERSION,
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
