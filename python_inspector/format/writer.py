"""Writes one recording: a folder that is either complete or not there.

Everything goes to `.<name>.partial-<pid>` beside the target and is renamed at the end, so that an
exception, Ctrl-C or a full disk leaves what was there before.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from python_inspector.errors import FormatError
from python_inspector.format.folders import replace_folder, sweep
from python_inspector.format.generator import Generator
from python_inspector.format.model_files import ModelFolder
from python_inspector.format.payload import (
    OutputFile,
    Payload,
    Spool,
    identity_of,
    place_of,
    require_same_weights,
    tensor_bytes,
)
from python_inspector.format.recording import (
    AXES,
    FORMAT,
    VERSION,
    Checkpoint,
    Contract,
    TensorRef,
    dtype_name,
    plain,
)
from python_inspector.format.recording_text import recording_text

RECORDING = "recording.json"
TENSORS = "tensors.safetensors"
WEIGHTS = "weights.safetensors"

Progress = Callable[[int, int], None]
"""Called with the number of checkpoints and of payload bytes so far."""


@dataclass
class Summary:
    """What `commit` wrote."""

    path: Path
    checkpoints: int
    tensors: int
    json_bytes: int
    tensor_bytes: int
    weight_bytes: int
    weights_path: Path | None
    weights_shared: bool
    """The weights file was there already and holds the same values."""
    hash_and_spool_seconds: float
    commit_seconds: float

    @property
    def total_bytes(self) -> int:
        """What this recording added to the disk."""
        return (
            self.json_bytes + self.tensor_bytes + (0 if self.weights_shared else self.weight_bytes)
        )


class _Key(str):
    """The key of a tensor that is being hashed: another's, if its content turns out to be."""


class _Promised:
    """A payload that is there, or being made by a thread."""

    def __init__(self, made: Payload | Future[tuple[Payload, bool]]) -> None:
        self._made = made

    @property
    def payload(self) -> Payload:
        return self._made if isinstance(self._made, Payload) else self._made.result()[0]


@dataclass
class _Weight:
    key: str
    name: str
    promised: _Promised
    source: torch.Tensor
    """Kept alive, so that its address stays its own."""
    identity: tuple[Any, ...]
    generator: Generator | None = None

    @property
    def payload(self) -> Payload:
        return self.promised.payload

    @property
    def is_stored(self) -> bool:
        """In a file of the recording's own."""
        return self.generator is None and self.payload.model_file is None


@dataclass
class _Generated:
    payload: Payload
    generator: Generator
    source: torch.Tensor
    identity: tuple[Any, ...]
    key: str | None = None
    """As a tensor of the run; None until it is used as one."""


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
        self._check_target()
        self._progress = progress
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self._partial = self.out.parent / f".{self.out.name}.partial-{os.getpid()}"
        sweep(self.out)
        self._partial.mkdir()
        self._spool = Spool(self._partial / ".payloads")
        self._weight_spool = Spool(self._partial / ".weights")
        self._model_folder = model_folder
        self._tensors: dict[Payload, str] = {}
        self._promised: dict[_Key, _Promised] = {}
        """Tensors whose content is not known yet, in the order of their keys."""
        self._next_key = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._weights: dict[str, _Weight] = {}
        self._weight_places: dict[tuple[Any, ...], _Weight] = {}
        self._generated: dict[tuple[Any, ...], _Generated] = {}
        self._rules: dict[str, _Generated] = {}
        self._contracts: dict[str, Contract] = {}
        self._traces: dict[tuple[Any, ...], str] = {}
        self._checkpoints: dict[str, dict[str, Any]] = {}
        self._notes: dict[str, Any] = {}
        self._warnings: list[str] = []
        self._bytes = 0
        self._seconds = 0.0
        self._open = True

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def generated(self, t: torch.Tensor, generator: Generator) -> None:
        """Declares that `generator` makes `t`: where this very tensor is used, its payload is not
        stored. The writer keeps it alive."""
        digest = hashlib.sha256(tensor_bytes(t)).hexdigest()
        payload = Payload(dtype_name(t.dtype), tuple(t.shape), digest, 0, 0)
        self._generated[place_of(t)] = _Generated(payload, generator, t, identity_of(t))

    def tensor(self, t: torch.Tensor) -> str:
        """The key of `t`'s content in this run's file; stores it if it is new."""
        made = self._find_generated(t)
        if made is not None:
            if made.key is None:
                made.key = self._new_key(made.payload.shape)
                self._rules[made.key] = made
            return made.key
        start = time.perf_counter()
        added = self._spool.add(t)
        self._seconds += time.perf_counter() - start
        if isinstance(added, Future):
            key = _Key(self._new_key(tuple(t.shape)))
            self._promised[key] = _Promised(added)
            self._advance(t.numel() * t.element_size())
            return key
        payload, _ = added
        if payload not in self._tensors:
            self._tensors[payload] = self._new_key(payload.shape)
            self._advance(payload.bytes)
        return self._tensors[payload]

    def _new_key(self, shape: tuple[int, ...]) -> str:
        key = f"t{self._next_key}"
        self._next_key += 1
        self._shapes[key] = shape
        return key

    def weight(self, name: str, t: torch.Tensor) -> str:
        """The key of a weight by its full HF name; a tied one gets the key of its first name."""
        place, identity = place_of(t), identity_of(t)
        known = self._weights.get(name) or self._weight_places.get(place)
        if known is not None and known.identity == identity:
            return known.key
        promised = self._promise_weight(name, t)
        if known is None:
            made = self._find_generated(t)
            rule = made.generator if made else None
            known = _Weight(f"w{len(self._weights)}", name, promised, t, identity, rule)
            self._weights[name] = self._weight_places[place] = known
            self._shapes[known.key] = tuple(t.shape)
            self._advance(t.numel() * t.element_size())
        elif promised.payload.sha256 != known.payload.sha256:
            raise FormatError(
                f"weight {name} changed during the run: SHA-256 {known.payload.sha256[:12]} at its "
                f"first use, {promised.payload.sha256[:12]} now; record from weights that stay as "
                "they are"
            )
        return known.key

    def _promise_weight(self, name: str, t: torch.Tensor) -> _Promised:
        made = self._find_generated(t)
        if made is not None:
            return _Promised(made.payload)
        start = time.perf_counter()
        folder = self._model_folder
        elsewhere = None if folder is None else folder.finder(name, t)
        added = self._weight_spool.add(t, elsewhere)
        self._seconds += time.perf_counter() - start
        return _Promised(added if isinstance(added, Future) else added[0])

    def contract(self, name: str, contract: Contract) -> None:
        """Names a contract; the same name must always mean the same."""
        if self._contracts.setdefault(name, contract) != contract:
            raise FormatError(f"contract {name} is {self._contracts[name]} already, not {contract}")

    def trace(self, operations: Sequence[Mapping[str, Any]]) -> str:
        """The key of a list of operations; equal lists share one."""
        content = tuple(tuple(entry.items()) for entry in operations)
        return self._traces.setdefault(content, f"p{len(self._traces)}")

    def checkpoint(self, c: Checkpoint) -> None:
        """Appends a checkpoint; every tensor key and the contract it names must exist."""
        if c.id in self._checkpoints:
            raise FormatError(f"checkpoint {c.id} is already recorded")
        if c.contract not in self._contracts:
            raise FormatError(f"{c.id}: contract {c.contract} is not declared")
        if c.trace is not None and c.trace not in self._traces.values():
            raise FormatError(f"{c.id}: trace {c.trace} is not stored")
        for name, ref in c.inputs.items():
            self._check_ref(f"{c.id}: input {name}", ref)
        for name, key in c.weights.items():
            self._check_key(f"{c.id}: weight {name}", key)
        for name, output in c.outputs.items():
            self._check_ref(f"{c.id}: output {name}", TensorRef(output.tensor, output.axes))
            if output.delta is not None:
                self._check_key(f"{c.id}: output {name}: delta", output.delta)
            if output.chained is not None and output.chained.delta is not None:
                self._check_key(f"{c.id}: output {name}: chained_delta", output.chained.delta)
            if output.simulated is not None:
                for key in output.simulated.model or ():
                    self._check_key(f"{c.id}: output {name}: model", key)
            for member in output.members:
                self._check_key(f"{c.id}: output {name}: {member.name}", member.values)
            if output.undecidable is not None:
                self._check_key(f"{c.id}: output {name}: undecidable", output.undecidable)
            if output.valid is not None:
                self._check_ref(f"{c.id}: output {name}: valid", output.valid)
            if (s := output.sampled) is not None:
                for key in (s.tokens, s.reference, s.oracle, s.rms):
                    self._check_key(f"{c.id}: output {name}: rows and sketch", key)
        for bug in c.bugs:
            for key in (bug.at, bug.values):
                self._check_key(f"{c.id}: bug {bug.name}", key)
        self._checkpoints[c.id] = c.to_json()
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
            files = {"tensors": self._save_tensors()}
            weights, shared = self._save_weights()
            if weights is not None:
                files["weights"] = weights
            size = self._save_json(header, files)
            self._close_spools()
            created_weights = self._publish_weights(weights is not None and not shared)
            replace_folder(self._partial, self.out)
            self._open = False
        except BaseException:
            if created_weights:
                self.weights_path.unlink(missing_ok=True)
            self.abort()
            raise
        return Summary(
            path=self.out,
            checkpoints=len(self._checkpoints),
            tensors=len(self._tensors),
            json_bytes=size,
            tensor_bytes=files["tensors"]["bytes"],
            weight_bytes=0 if weights is None else weights["bytes"],
            weights_path=None if weights is None else self.weights_path,
            weights_shared=shared,
            hash_and_spool_seconds=self._seconds,
            commit_seconds=time.perf_counter() - start,
        )

    def _settle(self) -> None:
        """Waits for the threads; of tensors with the same content the first one's key is left."""
        same: dict[str, str] = {}
        for key, promised in self._promised.items():
            payload = promised.payload
            if self._tensors.setdefault(payload, str(key)) != key:
                same[key] = self._tensors[payload]
        if self._promised:
            self._checkpoints = {
                id: _with_keys(checkpoint, same) for id, checkpoint in self._checkpoints.items()
            }

    def abort(self) -> None:
        """Removes everything of this recording; does nothing after commit."""
        if self._open:
            self._open = False
            self._close_spools()
            shutil.rmtree(self._partial, ignore_errors=True)

    def _find_generated(self, t: torch.Tensor) -> _Generated | None:
        made = self._generated.get(place_of(t))
        return made if made is not None and made.identity == identity_of(t) else None

    def _check_target(self) -> None:
        if self.weights_path.parent not in (self.out, self.out.parent):
            raise FormatError(
                f"weights file {self.weights_path} must lie in {self.out} or in {self.out.parent}"
            )
        if self.out.exists() and not self.out.is_dir():
            raise FormatError(f"{self.out} exists and is no folder")
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.out / RECORDING).is_file():
            raise FormatError(f"{self.out} exists and is no recording; choose another folder")

    def _check_key(self, where: str, key: str) -> None:
        if key not in self._shapes:
            raise FormatError(f"{where} refers to tensor {key}, which is not stored")

    def _check_ref(self, where: str, ref: TensorRef) -> None:
        self._check_key(where, ref.tensor)
        shape = self._shapes[ref.tensor]
        if len(ref.axes) != len(shape):
            raise FormatError(f"{where} has {len(shape)} dimensions {shape}, but axes {ref.axes}")
        if unknown := [axis for axis in ref.axes if axis not in AXES]:
            raise FormatError(f"{where}: axis {unknown[0]!r} is none of {', '.join(AXES)}")

    def _advance(self, size: int) -> None:
        self._bytes += size
        if self._progress is not None:
            self._progress(len(self._checkpoints), self._bytes)

    def _save_tensors(self) -> dict[str, Any]:
        named = [(key, payload) for payload, key in self._tensors.items()]
        return {"path": TENSORS, **self._spool.save(self._partial / TENSORS, named)}

    def _save_weights(self) -> tuple[dict[str, Any] | None, bool]:
        """The entry of the weights file, and whether a file in place already holds the weights."""
        payloads = {
            name: weight.payload
            for name, weight in sorted(self._weights.items())
            if weight.is_stored
        }
        if not payloads:
            return None, False
        inside = self.weights_path.parent == self.out
        path = self.weights_path.name if inside else f"../{self.weights_path.name}"
        if not inside and self.weights_path.exists():
            size, digest = require_same_weights(self.weights_path, payloads)
            return {"path": path, "bytes": size, "sha256": digest}, True
        saved = self._weight_spool.save(self._partial / self.weights_path.name, payloads.items())
        return {"path": path, **saved}, False

    def _save_json(self, header: dict[str, Any], files: dict[str, Any]) -> int:
        if missing := {"name", "provenance", "config", "network"} - header.keys():
            raise FormatError(f"the header lacks {', '.join(sorted(missing))}")
        table = {
            key: {"file": "tensors", "dtype": p.dtype, "shape": list(p.shape), "sha256": p.sha256}
            for p, key in self._tensors.items()
        } | {
            key: {"generator": made.generator.to_json(), "dtype": made.payload.dtype,
                  "shape": list(made.payload.shape), "sha256": made.payload.sha256}
            for key, made in self._rules.items()
        } | {
            w.key: _place(w)
            | {"name": w.name, "dtype": w.payload.dtype,
               "shape": list(w.payload.shape), "sha256": w.payload.sha256}
            for w in self._weights.values()
        }  # fmt: skip
        referred = {w.payload.model_file for w in self._weights.values()} - {None}
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
            **self._model_files(sorted(map(str, referred))),
            "tensors": table,
            "checkpoints": list(self._checkpoints.values()),
        }
        text = recording_text(recording).encode()
        with OutputFile(self._partial / RECORDING) as out:
            out.write(memoryview(text))
        return len(text)

    def _model_files(self, names: Sequence[str]) -> dict[str, Any]:
        if not names or self._model_folder is None:
            return {}
        sizes = {name: {"bytes": self._model_folder.files[name].size} for name in names}
        return {"model_files": {"folder": str(self._model_folder.folder), "files": sizes}}

    def _publish_weights(self, new: bool) -> bool:
        """Moves a new shared weights file to its place; true if there was something to move."""
        if not new or self.weights_path.parent == self.out:
            return False
        (self._partial / self.weights_path.name).replace(self.weights_path)
        return True

    def _close_spools(self) -> None:
        self._spool.close()
        self._weight_spool.close()


def _place(weight: _Weight) -> dict[str, Any]:
    """Where a weight's payload is."""
    if weight.generator is not None:
        return {"generator": weight.generator.to_json()}
    file = weight.payload.model_file
    return {"file": "weights"} if file is None else {"model_file": file}


def _with_keys(value: Any, same: Mapping[str, str]) -> Any:
    """A checkpoint with the keys that are left."""
    if isinstance(value, _Key):
        return same.get(value, str(value))
    if isinstance(value, dict):
        return {name: _with_keys(item, same) for name, item in value.items()}
    return [_with_keys(item, same) for item in value] if isinstance(value, list) else value
