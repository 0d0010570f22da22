"""Whether a run that is resumed has the weights that it was begun with.

All weights are hashed beside a large run, and a resumed one must not wait for that. So the model's
own files count as the same as long as size, times and inode are; only where these differ, or where
there are no such files, the hash is waited for. The journal has it once it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ResumeError
from .journal import Finished, Leftover, difference
from .model_files import ModelFolder

Files = dict[str, dict[str, int]]
"""By path, what changes when a file does."""


@dataclass
class WeightsBefore:
    """Of the run before: its files, and the SHA-256 of all weights if it was known by then."""

    files: Files
    sha256: str | None

    def require(self, journal: Path, files: Files, sha256: Callable[[], str]) -> None:
        """ResumeError where this run's are others; `sha256` is only waited for where it must be."""
        found = difference(self.files, files, "weights")
        if found is None and (self.files or self.sha256 is None):
            return  # or none of both is known: each that is used is compared with what it was
        changed = "{} is {}, this run has {}".format(*found) if found else ""
        if self.sha256 is None:
            reason = f"{changed}, and it was killed before it knew the SHA-256 of its weights"
        elif (here := sha256()) != self.sha256:
            reason = f"weights_sha256 is {self.sha256}, this run has {here}"
            reason += f" ({changed})" if changed else ""
        else:
            return
        raise ResumeError(
            f"{journal}: {reason}: resume with the weights that the recording was begun with, or "
            "leave out --resume to record anew"
        )


def files_of(folder: ModelFolder | None) -> Files:
    """As they are now; {} without a folder. A device's number, which a reboot may change, is no
    part of it."""
    if folder is None:
        return {}
    found = {}
    for file in folder.files.values():
        status = file.path.stat()
        found[str(file.path)] = {
            "bytes": status.st_size,
            "modified_ns": status.st_mtime_ns,
            "changed_ns": status.st_ctime_ns,  # which cannot be set by programs
            "inode": status.st_ino,
        }
    return found


def weights_before(leftover: Leftover, finished: Iterable[Finished]) -> WeightsBefore:
    """Of a run that was killed, with what it had finished."""
    known = [one.weights_sha256 for one in finished if one.weights_sha256 is not None]
    files: Files = (leftover.head or {}).get("files", {})
    return WeightsBefore(files, known[-1] if known else None)
