"""What is kept of a run: figures of every checkpoint, and what produced them.

A number that is not finite is the string "inf", "-inf" or "nan" in JSON, as the harness writes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..json_lines import Line
from ..results import Judged, Key

_NOT_FINITE = ("inf", "-inf", "nan")


@dataclass(frozen=True)
class Output:
    """One output's error against the float64 oracle."""

    error: float  # E_T
    element: float  # M_E
    gain: float  # signed
    families: Mapping[str, float]  # M_A of each family of groups
    octaves: tuple[int, ...] | None  # elements by scaled error; None: not kept
    differing: int | None = None  # elements whose bits are not the rounded model's
    details: Mapping[str, Any] = field(default_factory=dict)  # kept, never compared


@dataclass(frozen=True)
class Checkpoint(Judged):
    """What one run says of one checkpoint; hashes may be cut to their first 16 digits."""

    block: str
    status: str
    contract: str
    impl: tuple[str, ...]
    outputs: Mapping[str, Output]
    bits: str  # hash of the outputs; "": there are none
    golden: str  # hash of the recording
    blind_to: tuple[str, ...] = ()
    # Not in repr(), by which a history knows a run that it holds.
    determinism: str = field(default="", repr=False)  # "D0", "D1", "not measured"; "": unknown
    margins: Mapping[str, float] | None = field(default=None, repr=False)  # of known bugs

    @property
    def error(self) -> float:
        """The largest E_T of its outputs; NaN where one is, or where there is no output."""
        errors = [output.error for output in self.outputs.values()]
        return max(errors) if errors and not any(map(math.isnan, errors)) else math.nan


@dataclass(frozen=True)
class Provenance:
    """What produced a run; an empty text or None is unknown."""

    started: str = ""  # ISO 8601, UTC
    command: str = ""
    version: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)  # compiler, build, ...
    devices: tuple[str, ...] = ()  # "NAME: words", the driver among them
    commit: str = ""
    committed: str = ""  # ISO 8601
    dirty: bool | None = None


@dataclass(frozen=True)
class Run:
    """One run of the harness, or a baseline."""

    name: str  # where it was read from, for messages
    provenance: Provenance
    checkpoints: Mapping[Key, Checkpoint]
    complete: bool = True  # False: it was cut short


def number(value: object) -> float:
    """A double as the harness writes it. TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{value!r} is no number")
    if isinstance(value, str) and value not in _NOT_FINITE:
        raise TypeError(f"{value!r} is no number")
    return float(value)


def text(value: object) -> str:
    """A text that every database can hold. TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    if "\0" in value:
        raise TypeError(f"{value!r} has a NUL character in it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"{value!r} is no Unicode text") from error
    return value


def numbers(values: object) -> dict[str, float]:
    """An object of doubles by name. TypeError for anything else."""
    if not isinstance(values, dict):
        raise TypeError(f"{values!r} is no object")
    return {text(name): number(value) for name, value in values.items()}


def texts(values: object) -> tuple[str, ...]:
    """A list of texts. TypeError for anything else."""
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is no list")
    return tuple(text(value) for value in values)


def to_json(value: float, digits: int | None = None) -> float | str:
    """The double as JSON holds it, with so many significant digits (None: all)."""
    if not math.isfinite(value):
        return str(value)
    return value if digits is None else float(f"{value:.{digits}g}")


_OUTPUT = ("E_T", "M_E", "gain", "octaves", "differing", "details")


def output_to_json(output: Output, digits: int | None = None) -> Line:
    """An output as baselines and the history hold it: every other name is a family's."""
    line: Line = {
        "E_T": to_json(output.error, digits),
        "M_E": to_json(output.element, digits),
        "gain": to_json(output.gain, digits),
    }
    line |= {name: to_json(value, digits) for name, value in output.families.items()}
    if output.differing is not None:
        line["differing"] = output.differing
    if output.octaves is not None:
        line["octaves"] = _without_zeros_behind(output.octaves)
    return line


def output_from_json(line: Line) -> Output:
    """The inverse. KeyError and TypeError say what is wrong with the line."""
    octaves = line.get("octaves")
    differing = line.get("differing")
    return Output(
        error=number(line["E_T"]),
        element=number(line["M_E"]),
        gain=number(line["gain"]),
        families={text(n): number(v) for n, v in line.items() if n not in _OUTPUT},
        octaves=None if octaves is None else tuple(int(number(count)) for count in octaves),
        differing=None if differing is None else int(number(differing)),
        details=dict(line.get("details", {})),
    )


def _without_zeros_behind(counts: tuple[int, ...]) -> list[int]:
    used = max((i + 1 for i, count in enumerate(counts) if count), default=0)
    return list(counts[:used])
