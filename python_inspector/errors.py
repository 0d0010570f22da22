"""Errors and warnings that callers of the package meet; the modules that raise them say when.

Light to import: the command line tells them apart before torch is needed.
"""


class UsageError(Exception):
    """Options that do not go together."""


class FormatError(ValueError):
    """A value that the recording format cannot hold, or a file that does not follow it."""


class PlanError(ValueError):
    """A run that makes no sense, such as chunks that do not add up to the tokens."""


class UnknownModelError(ValueError):
    """No tiny model has that name."""


class RecordError(RuntimeError):
    """A run that cannot be recorded as it is; the text says why and what to do."""


class ResumeError(RecordError):
    """A recording that was killed cannot be continued by this run; the text says what differs."""


class ProcessError(RuntimeError):
    """A process that recorded a part of a run failed; the text has its last words."""


class RecordWarning(UserWarning):
    """Something about a recording that a reader of its verdicts should know."""


class HarnessError(RuntimeError):
    """The harness is not there, or did not do what it was asked; the text has its last words."""
