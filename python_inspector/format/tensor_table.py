"""The tensors and weights of one recording by key; each content is stored once, and the bytes of a
large one once in whatever shapes it comes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import FormatError
from .generator import Generator
from .model_files import ModelFolder
from .payload import Payload, identity_of, place_of, tensor_bytes
from .recording import CODES, dtype_name
from .spool import Spool


class Key(str):
    """The key of a tensor that is being hashed: another's, if its content turns out to be."""


class Promised:
    """A payload that is there, or being made by a thread."""

    def __init__(self, made: Payload | Future[Payload]) -> None:
        self._made = made

    @property
    def payload(self) -> Payload:
        return self._made if isinstance(self._made, Payload) else self._made.result()


@dataclass
class Weight:
    key: str
    name: str
    promised: Promised
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


class TensorTable:
    """Keys t0, t1 ... for tensors of the run and w0, w1 ... for weights, in the order of their
    first use; their bytes go to two spools in `folder`.

    `advanced` is called with the number of bytes that came in.
    """

    def __init__(
        self,
        folder: Path,
        model_folder: ModelFolder | None,
        advanced: Callable[[int], None],
    ) -> None:
        self._spool = Spool(folder / ".payloads", shares=True)
        self.seconds = 0.0
        """Spent on hashing and storing while nothing else ran."""
        self._weight_spool = Spool(folder / ".weights")
        self._model_folder = model_folder
        self._advanced = advanced
        self._tensors: dict[Payload, str] = {}
        self._promised: dict[Key, Promised] = {}
        """Tensors whose content is not known yet, in the order of their keys."""
        self._next_key = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._weights: dict[str, Weight] = {}
        self._weight_places: dict[tuple[Any, ...], Weight] = {}
        self._generated: dict[tuple[Any, ...], _Generated] = {}
        self._rules: dict[str, _Generated] = {}

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, key: str) -> tuple[int, ...] | None:
        """Of a tensor or weight; None for a key that is none."""
        return self._shapes.get(key)

    def generated(self, t: torch.Tensor, generator: Generator) -> None:
        """Declares that `generator` makes `t`."""
        digest = hashlib.sha256(tensor_bytes(t)).hexdigest()
        payload = Payload(dtype_name(t.dtype), tuple(t.shape), digest, 0)
        self._generated[place_of(t)] = _Generated(payload, generator, t, identity_of(t))

    def tensor(self, t: torch.Tensor) -> str:
        """The key of `t`'s content; stores it if it is new."""
        made = self._find_generated(t)
        if made is not None:
            if made.key is None:
                made.key = self._new_key(made.payload.shape)
                self._rules[made.key] = made
            return made.key
        start = time.perf_counter()
        added = self._spool.add(t)
        self.seconds += time.perf_counter() - start
        if isinstance(added, Future):
            return self._promise(Promised(added), tuple(t.shape), t.numel() * t.element_size())
        if added not in self._tensors:
            self._enter(added)
        return self._tensors[added]

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
            known = Weight(f"w{len(self._weights)}", name, promised, t, identity, rule)
            self._weights[name] = self._weight_places[place] = known
            self._shapes[known.key] = tuple(t.shape)
            self._advanced(t.numel() * t.element_size())
        elif promised.payload.sha256 != known.payload.sha256:
            raise FormatError(
                f"weight {name} changed during the run: SHA-256 {known.payload.sha256[:12]} at its "
                f"first use, {promised.payload.sha256[:12]} now; record from weights that stay as "
                "they are"
            )
        return known.key

    def settle(self) -> dict[str, str]:
        """Waits for the threads. Of tensors with the same content one is left, and the keys are
        numbered without gaps: from what they were, for all tensors, or none where all stay."""
        same: dict[str, str] = {}
        for key, promised in self._promised.items():
            payload = promised.payload
            if self._tensors.setdefault(payload, str(key)) != key:
                same[key] = self._tensors[payload]
        if not same:
            return {}
        left = sorted([*self._tensors.values(), *self._rules], key=lambda key: int(key[1:]))
        new = {key: f"t{number}" for number, key in enumerate(left)}
        self._tensors = {payload: new[key] for payload, key in self._tensors.items()}
        self._rules = {new[key]: made for key, made in self._rules.items()}
        return new | {key: new[first] for key, first in same.items()}

    def save_tensors(self, path: Path) -> dict[str, Any]:
        """Writes the file of the run's tensors; its entry."""
        named = [(key, payload) for payload, key in self._tensors.items()]
        return {"path": path.name, **self._spool.save(path, named)}

    @property
    def has_codes(self) -> bool:
        """Whether a weight is of codes that version 2 does not have."""
        return any(it.payload.dtype in CODES for it in self._weights.values())

    def stored_weights(self) -> dict[str, Payload]:
        """The weights that belong into a file of the recording's own, by name."""
        return {
            name: weight.payload
            for name, weight in sorted(self._weights.items())
            if weight.is_stored
        }

    def save_weights(self, path: Path) -> dict[str, Any]:
        """Writes their file; size and SHA-256."""
        return self._weight_spool.save(path, self.stored_weights().items())

    def to_json(self) -> dict[str, Any]:
        """The table as the recording has it."""
        return {
            key: {"file": "tensors"} | self._shared(p)
            | {"dtype": p.dtype, "shape": list(p.shape), "sha256": p.sha256}
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

    def model_files(self) -> dict[str, Any]:
        """The model's own files that hold weights, with their folder; {} where there is none."""
        names = {w.payload.model_file for w in self._weights.values()} - {None}
        if not names or self._model_folder is None:
            return {}
        folder = self._model_folder
        sizes = {name: {"bytes": folder.files[name].size} for name in sorted(map(str, names))}
        return {"model_files": {"folder": str(folder.folder), "files": sizes}}

    def close(self) -> None:
        """Removes the spools."""
        self._spool.close()
        self._weight_spool.close()

    def _shared(self, payload: Payload) -> dict[str, str]:
        """The key that the bytes of a payload have in the file, where it is another tensor's."""
        owner = self._spool.owner(payload)
        return {} if owner is None else {"payload_of": self._tensors[owner]}

    def _promise(self, promised: Promised, shape: tuple[int, ...], size: int) -> Key:
        key = Key(self._new_key(shape))
        self._promised[key] = promised
        self._advanced(size)
        return key

    def _enter(self, payload: Payload) -> None:
        self._tensors[payload] = self._new_key(payload.shape)
        self._advanced(payload.bytes)

    def _new_key(self, shape: tuple[int, ...]) -> str:
        key = f"t{self._next_key}"
        self._next_key += 1
        self._shapes[key] = shape
        return key

    def _promise_weight(self, name: str, t: torch.Tensor) -> Promised:
        made = self._find_generated(t)
        if made is not None:
            return Promised(made.payload)
        start = time.perf_counter()
        folder = self._model_folder
        elsewhere = None if folder is None else folder.finder(name, t)
        added = self._weight_spool.add(t, elsewhere)
        self.seconds += time.perf_counter() - start
        return Promised(added)

    def _find_generated(self, t: torch.Tensor) -> _Generated | None:
        made = self._generated.get(place_of(t))
        return made if made is not None and made.identity == identity_of(t) else None


def _place(weight: Weight) -> dict[str, Any]:
    """Where a weight's payload is."""
    if weight.generator is not None:
        return {"generator": weight.generator.to_json()}
    file = weight.payload.model_file
    return {"file": "weights"} if file is None else {"model_file": file}
