"""Errors and warnings that callers of the package meet; the modules that raise them say when.

Light to import: the command line tells them apart before torch is needed.
"""

from __future__ import annotations

from typing import TypeVar

PUBLIC = "plumbline"
"""What the package is called where it is installed: tracebacks and pytest's summary say it."""

NO_GRADIENT = "not require grad"
"""In torch's errors where gradients are asked for and none were tracked."""

_Class = TypeVar("_Class", bound=type[BaseException])


def public(error: _Class) -> _Class:
    """Names an error that users meet after the package, not after the module that defines it."""
    error.__module__ = PUBLIC
    return error


@public
class UsageError(Exception):
    """Options that do not go together."""


@public
class FormatError(ValueError):
    """A value that the recording format cannot hold, or a file that does not follow it."""


@public
class PlanError(ValueError):
    """A run that makes no sense, such as chunks that do not add up to the tokens."""


@public
class UnknownModelError(ValueError):
    """No tiny model has that name."""


@public
class RecordError(RuntimeError):
    """A run that cannot be recorded as it is; the text says why and what to do."""


class ProcessError(RuntimeError):
    """A recording cannot be made because of another process; the text says of which."""


@public
class RecordWarning(UserWarning):
    """Something about a recording that a reader of its verdicts should know."""


@public
class HarnessError(RuntimeError):
    """The harness is not there, or did not do what it was asked; the text has its last words."""
