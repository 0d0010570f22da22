"""Taps that do not fit the code that runs: of a newer release, or of an edited copy.

A tap asks a call for what it needs. Where that is not there, or where what it runs a second time
raises, the call is recorded as any call is, as kind `module`: that costs it its name, and no native
block is judged by it. A warning of the recording says which tap, where, and what was missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..errors import RecordError
from ..versions import newer_than_proven


class Misfit(Exception):  # noqa: N818  (always caught)
    """A tap lacks what that of the attention function was to find."""


_OF_TAPS = (
    *(Misfit, LookupError, AttributeError, TypeError, ValueError, AssertionError),
    *(RuntimeError, NameError),
)
"""What names, shapes and operations raise that are not as a tap expects them; anything else that
code raises is its own."""
_PASSED_ON = (RecordError, torch.OutOfMemoryError)
"""Of these what says something of the run, not of a tap."""

ATTENTION = "sdpa"
"""The name of attention functions, whose facts the blocks around them are described with."""


class Misfits:
    """The taps of one recording that did not fit, with one warning for each."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._told: set[tuple[str, str]] = set()
        self._names: set[str] = set()

    @contextmanager
    def kept_apart(self, where: str, tap: str, instead: str) -> Iterator[None]:
        """An error of the tap inside becomes a warning, which ends with `instead`."""
        try:
            yield
        except _PASSED_ON:
            raise
        except _OF_TAPS as error:
            self._tell(where, tap, error, instead)

    def require_attention(self) -> None:
        """Misfit where the attention function could not be read."""
        if ATTENTION in self._names:
            raise Misfit(f"it is described with what the tap {ATTENTION} finds, which does not fit")

    def _tell(self, where: str, tap: str, error: Exception, instead: str) -> None:
        self._names.add(tap)
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
        if isinstance(error, Misfit):
            self._names.add(ATTENTION)
            reason = lines[0]
        if (tap, reason) in self._told:
            return
        self._told.add((tap, reason))
        self._warn(
            f"[{where}] the tap {tap} does not fit the code that runs ({reason}): {instead}"
            f"{newer_than_proven()}"
        )
