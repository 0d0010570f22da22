"""The tensors that a checkpoint refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import FormatError
from .recording import AXES, Checkpoint, OutputRef, TensorRef

ShapeOf = Callable[[str], tuple[int, ...] | None]


def require_stored(c: Checkpoint, shape_of: ShapeOf) -> None:
    """FormatError unless all keys are of tensors that are stored and every axis has a name.

    `shape_of` is None for a key that is not.
    """
    for name, ref in c.inputs.items():
        _require_axes(f"{c.id}: input {name}", ref, shape_of)
    for name, output in c.outputs.items():
        where = f"{c.id}: output {name}"
        _require_axes(where, TensorRef(output.tensor, output.axes), shape_of)
        if output.valid is not None:
            _require_axes(f"{where}: valid", output.valid, shape_of)
        for part, key in _parts(output):
            _require_key(f"{where}: {part}", key, shape_of)
    for name, key in c.weights.items():
        _require_key(f"{c.id}: weight {name}", key, shape_of)
    for bug in c.bugs:
        for key in (bug.at, bug.values):
            _require_key(f"{c.id}: bug {bug.name}", key, shape_of)


def with_keys_of(checkpoint: Mapping[str, Any], key_of: Callable[[str], str]) -> dict[str, Any]:
    """A checkpoint in JSON with other keys for its tensors and weights."""
    entry = dict(checkpoint)
    entry["inputs"] = {name: _renamed(ref, key_of) for name, ref in entry["inputs"].items()}
    entry["weights"] = {name: key_of(key) for name, key in entry["weights"].items()}
    entry["outputs"] = {name: _renamed(ref, key_of) for name, ref in entry["outputs"].items()}
    if "bugs" in entry:
        entry["bugs"] = [_renamed(bug, key_of) for bug in entry["bugs"]]
    return entry


_KEYS = ("tensor", "delta", "chained_delta", "undecidable", "ill_conditioned", "at", "values")
"""Fields that hold a key, or null."""
_WITH_KEYS = ("valid", "model", "rows", "legal")
"""Fields that hold an object with such fields, or null."""


def _renamed(entry: Mapping[str, Any], key_of: Callable[[str], str]) -> dict[str, Any]:
    """An input, an output, a bug or a part of one."""
    new = dict(entry)
    for name, value in entry.items():
        if value is None:
            continue
        if name in _KEYS:
            new[name] = key_of(value)
        elif name in _WITH_KEYS:
            new[name] = _renamed(value, key_of)
        elif name == "members":
            new[name] = [_renamed(member, key_of) for member in value]
        elif name == "sketch":
            new[name] = {part: key_of(key) for part, key in value.items()}
    return new


def _parts(output: OutputRef) -> Iterator[tuple[str, str]]:
    """What belongs to an output, and its key."""
    if output.delta is not None:
        yield "delta", output.delta
    if output.chained is not None and output.chained.delta is not None:
        yield "chained_delta", output.chained.delta
    if output.simulated is not None:
        for key in output.simulated.model or ():
            yield "model", key
    for member in output.members:
        yield member.name, member.values
    if output.undecidable is not None:
        yield "undecidable", output.undecidable
    if output.ill_conditioned is not None:
        yield "ill_conditioned", output.ill_conditioned
    if output.legal is not None:
        yield "legal", output.legal.at
        yield "legal", output.legal.values
    if (s := output.sampled) is not None:
        for key in (s.tokens, s.reference, s.oracle, s.rms):
            yield "rows and sketch", key


def _require_key(where: str, key: str, shape_of: ShapeOf) -> tuple[int, ...]:
    shape = shape_of(key)
    if shape is None:
        raise FormatError(f"{where} refers to tensor {key}, which is not stored")
    return shape


def _require_axes(where: str, ref: TensorRef, shape_of: ShapeOf) -> None:
    shape = _require_key(where, ref.tensor, shape_of)
    if len(ref.axes) != len(shape):
        raise FormatError(f"{where} has {len(shape)} dimensions {shape}, but axes {ref.axes}")
    if unknown := [axis for axis in ref.axes if axis not in AXES]:
        raise FormatError(f"{where}: axis {unknown[0]!r} is none of {', '.join(AXES)}")
