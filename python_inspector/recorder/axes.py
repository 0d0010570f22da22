"""axes= of check(): what a user calls the axes of outputs, and what the judge makes of that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

from ..errors import RecordError
from ..format.axes import QUERY, by_dimensions
from ..format.recording import AXES

Axes = str | Sequence[str] | Mapping[str, str | Sequence[str]] | None

_KNOWN = {
    "b": "batch", "t": "token", "s": "token", "h": "head", "d": "head_dim", "c": "channel",
    "v": "vocab", "tokens": "token", "seq": "token", "sequence": "token", "length": "token",
    "heads": "head", "hidden": "channel", "features": "channel", "dim": "head_dim",
}  # fmt: skip
"""Of letters and words for axes, in lower case, those that the judge has a rule for."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PARTS = "part"
"""Of complex numbers: real, imaginary."""


class OutputAxes:
    """What `axes=` says of each output: "B T H D" of all that have as many, or a dict by name."""

    def __init__(self, axes: Axes) -> None:
        by_name = axes if isinstance(axes, Mapping) else {}
        self._by_name = {name: _words(of) for name, of in by_name.items()}
        self._all = None if axes is None or isinstance(axes, Mapping) else _words(axes)
        self._seen: dict[str, int] = {}
        self.labels: dict[str, tuple[str, ...]] = {}
        """The axes that verdicts name, by output."""

    def __call__(self, name: str, t: torch.Tensor, pairs: bool = False) -> tuple[str, ...]:
        """The axes that the judge groups an output's errors by. `pairs`: the last one is that of
        the parts of complex numbers."""
        guessed = _guessed(t)
        self._seen[name] = given = t.ndim - pairs
        words = self._by_name.get(name)
        if words is not None and len(words) != given:
            raise RecordError(
                f"[check] axes has {len(words)} names for {name}: {' '.join(words)}; it has "
                f"{given} dimensions"
            )
        if words is None and self._all is not None and len(self._all) == given:
            words = self._all
        if words is None:
            self.labels[name] = ("",) * t.ndim
            return guessed
        known = [_KNOWN.get(word.lower(), word.lower()) for word in words]
        fits = set(known) <= set(AXES) and len(set(known)) == len(known) and not pairs
        self.labels[name] = (*words, *[_PARTS] * pairs)
        return tuple(known) if fits else guessed

    def check(self) -> None:
        """RecordError for names of no output, once all are seen."""
        if unknown := sorted(self._by_name.keys() - self._seen.keys()):
            raise RecordError(
                f"[check] axes has {unknown[0]!r}, which is no output; there are "
                f"{', '.join(self._seen)}"
            )
        if self._all is not None and len(self._all) not in self._seen.values():
            have = ", ".join(f"{name} {count}" for name, count in self._seen.items())
            raise RecordError(
                f"[check] axes has {len(self._all)} names: {' '.join(self._all)}; the outputs have "
                f"dimensions: {have}"
            )


def _guessed(t: torch.Tensor) -> tuple[str, ...]:
    """Of [B, H, T, D] and [B, T, H, D] the one that has more rows: gains of channels and heads
    show the more, the more rows there are."""
    guessed = by_dimensions(t)[1]
    swapped = guessed == QUERY and t.shape[1] > t.shape[2]
    return (guessed[0], guessed[2], guessed[1], guessed[3]) if swapped else guessed


def _words(axes: str | Sequence[str]) -> tuple[str, ...]:
    words = tuple(axes.replace(",", " ").split()) if isinstance(axes, str) else tuple(axes)
    if len(words) == 1 and isinstance(axes, str) and axes.isalpha() and axes.isupper():
        words = tuple(axes)  # "BTHD"
    for word in words:
        if not _NAME.fullmatch(word):
            raise RecordError(f"[check] axes has {word!r}: a name is letters, digits, _ and -")
    return words
