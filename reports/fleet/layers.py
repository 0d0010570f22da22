"""Shards of a recording by its layers: their checkpoints, and the tensors that these need.

The rule is that of harness/run/shard.h, so that a node fetches what its harness reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

CHAIN = "(chain)"  # the id of a whole model's run


def layer_of(checkpoint: str) -> int | None:
    """The number of the layer that it is in: the first number among the steps of its path."""
    path = checkpoint.partition("#")[0].partition(":")[0]
    numbers = (int(step) for step in path.split(".") if step.isascii() and step.isdigit())
    return next((number for number in numbers if number < 1 << 63), None)


def _hash(recording: str, name: str) -> int:
    return int(hashlib.sha256(f"{recording} {name}".encode()).hexdigest()[:16], 16)


class LayerShards:
    """Of one recording."""

    def __init__(self, recording: str, ids: Iterable[str]) -> None:
        """`ids`: of all its checkpoints."""
        self._recording = recording
        layers = {layer for each in ids if (layer := layer_of(each)) is not None}
        self._ranks = {layer: rank for rank, layer in enumerate(sorted(layers))}

    def shard_of(self, checkpoint: str, count: int) -> int:
        """From 1 to `count`."""
        first, end = 0, count
        if (layer := layer_of(checkpoint)) is not None:
            rank, layers = self._ranks[layer], len(self._ranks)
            first = rank * count // layers
            end = max(first + 1, (rank + 1) * count // layers)
        path = checkpoint.partition("#")[0]
        return 1 + first + _hash(self._recording, path) % (end - first)


def needed(header: Mapping[str, Any], index: int, count: int, chains: bool) -> set[str]:
    """Keys of the tensors that a shard's checkpoints name, of its chain's, too, if it runs."""
    name, checkpoints, tensors = header["name"], header["checkpoints"], header["tensors"]
    if chains and _hash(name, CHAIN) % count == index - 1:
        return set(tensors)
    shards = LayerShards(name, (each["id"] for each in checkpoints))
    mine = (each for each in checkpoints if shards.shard_of(each["id"], count) == index)
    return {word for each in mine for word in _words(each) if word in tensors}


def _words(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _words(each)
    elif isinstance(value, list):
        for each in value:
            yield from _words(each)
