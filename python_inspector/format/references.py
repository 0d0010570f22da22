"""The tensors that a checkpoint refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from python_inspector.errors import FormatError
from python_inspector.format.recording import AXES, Checkpoint, OutputRef, TensorRef

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
