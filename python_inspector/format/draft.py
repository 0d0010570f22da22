"""A recording in memory: what a writer is given, kept until its files are asked for."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .recording import Checkpoint, Contract
from .references import require_stored, with_keys_of
from .writer import RecordingWriter


class Draft:
    """Tensors and checkpoints of calls. The tensors are not copied: they must not be changed."""

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._weights: dict[str, tuple[str, torch.Tensor]] = {}
        self._contracts: dict[str, Contract] = {}
        self._traces: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._checkpoints: dict[str, dict[str, Any]] = {}
        self._warnings: list[str] = []

    def tensor(self, t: torch.Tensor) -> str:
        """Its key."""
        key = f"t{len(self._tensors)}"
        self._tensors[key] = t
        return key

    def weight(self, name: str, t: torch.Tensor) -> str:
        """The key of a weight."""
        key = f"w{len(self._weights)}"
        self._weights[key] = (name, t)
        return key

    def contract(self, name: str, contract: Contract) -> None:
        """Names a contract."""
        self._contracts[name] = contract

    def trace(self, operations: Sequence[Mapping[str, Any]]) -> str:
        """The key of a list of operations."""
        key = f"p{len(self._traces)}"
        self._traces[key] = operations
        return key

    def checkpoint(self, c: Checkpoint) -> None:
        """Appends a checkpoint; every tensor that it names must be here."""
        require_stored(c, self._shape)
        self._checkpoints[c.id] = c.to_json()

    def drop(self, id: str) -> None:
        """Removes a checkpoint; its tensors stay until files are written without them."""
        self._checkpoints.pop(id, None)

    def warn(self, text: str) -> None:
        """Adds a warning."""
        self._warnings.append(text)

    def without_checkpoints(self) -> Draft:
        """One of the same tensors so far."""
        other = copy.copy(self)
        other._tensors, other._weights = dict(self._tensors), dict(self._weights)
        other._checkpoints = {}
        return other

    def save(self, out: Path, header: dict[str, Any]) -> bool:
        """Writes what checkpoints refer to to the folder; false where there are none."""
        if not self._checkpoints:
            return False
        with RecordingWriter(out) as writer:
            for name, contract in self._contracts.items():
                writer.contract(name, contract)
            for text in self._warnings:
                writer.warn(text)
            keys: dict[str, str] = {}

            def key_of(key: str) -> str:
                if key not in keys:
                    keys[key] = self._written(writer, key)
                return keys[key]

            for checkpoint in self._checkpoints.values():
                entry = with_keys_of(checkpoint, key_of)
                for of in (entry, *entry["outputs"].values()):
                    if "trace" in of:
                        of["trace"] = writer.trace(self._traces[of["trace"]])
                writer.entry(entry)
            writer.commit(header)
        return True

    def _shape(self, key: str) -> tuple[int, ...] | None:
        if key in self._weights:
            return tuple(self._weights[key][1].shape)
        return tuple(self._tensors[key].shape) if key in self._tensors else None

    def _written(self, writer: RecordingWriter, key: str) -> str:
        if key in self._weights:
            return writer.weight(*self._weights[key])
        return writer.tensor(self._tensors[key])
