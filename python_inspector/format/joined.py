"""A recording of a run's later forward calls, joined to that of its first ones.

A process may record some calls of a run and others the rest: each makes all calls, so that ids,
steps and caches are those of one run. What several of them stored is stored once.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import FormatError
from . import share
from .generator import Generator, generate
from .model_files import name_of
from .recording import TORCH_DTYPES, Contract
from .references import with_keys_of
from .safetensors_file import read_header
from .writer import RECORDING, RecordingWriter

WeightOf = Callable[[str], torch.Tensor]
"""From a weight's full HF name to its values."""


def join(writer: RecordingWriter, folder: Path, weight_of: WeightOf) -> None:
    """Appends the checkpoints of the recording in `folder`. FormatError where one is there already,
    or a weight had other values, ResumeError where it is of another run."""
    if writer.run is not None:
        share.require_run(folder, writer.run)
    recording = json.loads((folder / RECORDING).read_bytes())  # of a process like this one
    for name, contract in recording["contracts"].items():
        writer.contract(name, Contract(**contract | {"inside": tuple(contract.get("inside", ()))}))
    notes = recording["provenance"]["notes"]
    writer.note(**notes)
    for text in recording["provenance"]["warnings"]:
        writer.warn(text)
    traces = recording["traces"]
    read = _mapped(folder / recording["files"]["tensors"]["path"])
    taken = _Taken(writer, recording["tensors"], read, weight_of)
    keys = sorted(recording["tensors"], key=_number)  # as one process would have stored them
    taken.begin_weights(keys)
    for key in keys:
        taken.key_of(key)
    for checkpoint in recording["checkpoints"]:
        entry = with_keys_of(checkpoint, taken.key_of)
        if "trace" in entry:
            entry["trace"] = writer.trace(traces[entry["trace"]]["operations"])
        writer.take_over_checkpoint(entry, before=False)


def _mapped(path: Path) -> Callable[[str], memoryview]:
    """From the key of a tensor in the file to its bytes, which are there as long as they are used.

    They are neither copied nor hashed: of gigabytes the process that joins them would otherwise
    read each twice.
    """
    header = read_header(path)
    with path.open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def read(key: str) -> memoryview:
        entry = header.tensors[key]
        return content[header.payload + entry.begin : header.payload + entry.end]

    return read


def _number(key: str) -> tuple[str, int]:
    return key[0], int(key[1:])


class _Taken:
    """The keys that another recording's tensors have here; stores what is new."""

    def __init__(
        self,
        writer: RecordingWriter,
        table: Mapping[str, Any],
        read: Callable[[str], memoryview],
        weight_of: WeightOf,
    ) -> None:
        self._writer = writer
        self._table = table
        self._read = read
        self._weight_of = weight_of
        self._keys: dict[str, str] = {}

    def key_of(self, key: str) -> str:
        if key not in self._keys:
            entry = self._table[key]
            self._keys[key] = self._weight(entry) if "name" in entry else self._tensor(key, entry)
        return self._keys[key]

    def begin_weights(self, keys: Iterable[str]) -> None:
        """Threads hash them beside what else is taken: gigabytes, one after the other otherwise."""
        for entry in (self._table[key] for key in keys):
            if "name" in entry:
                self._writer.weight(entry["name"], self._weight_of(entry["name"]))

    def _tensor(self, key: str, entry: Mapping[str, Any]) -> str:
        if "generator" not in entry:
            content = entry["dtype"], entry["shape"], entry["sha256"]
            return self._writer.hashed(*content, lambda: self._read(name_of(entry, key)))
        rule = {name: value for name, value in entry["generator"].items() if name != "kind"}
        made = generate(Generator(**rule), TORCH_DTYPES[entry["dtype"]], tuple(entry["shape"]))
        self._writer.generated(made, Generator(**rule))
        return self._writer.tensor(made)

    def _weight(self, entry: Mapping[str, Any]) -> str:
        key = self._writer.weight(entry["name"], self._weight_of(entry["name"]))
        sha256 = self._writer.stored_weight(key).payload.sha256
        if sha256 != entry["sha256"]:
            raise FormatError(
                f"weight {entry['name']} has SHA-256 {sha256[:12]} here and {entry['sha256'][:12]} "
                "in the process that recorded later calls: record from weights that stay as they "
                "are"
            )
        return key
