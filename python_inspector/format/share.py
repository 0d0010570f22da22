"""What a process says of the part of a run that it recorded, to the one that joins it.

The part may have been recorded before the run was killed, by a process of another run, or have been
damaged since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ResumeError
from .journal import difference, other_run

SHARE = ".share"
RECORDING = "recording.json"


def save(folder: Path, run: Mapping[str, Any]) -> None:
    """Beside the finished files of a recording in `folder`: which run they are of."""
    said = {"run": _common(run), "sha256": _sha256(folder / RECORDING)}
    (folder / SHARE).write_text(json.dumps(said))


def is_whole(folder: Path) -> bool:
    """Whether the files are as they were written."""
    try:
        said = json.loads((folder / SHARE).read_bytes())
        if said["sha256"] != _sha256(folder / RECORDING):
            return False
        tensors = json.loads((folder / RECORDING).read_bytes())["files"]["tensors"]
        return bool(tensors["sha256"] == _sha256(folder / tensors["path"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def require_run(folder: Path, run: Mapping[str, Any]) -> None:
    """ResumeError where it is of another one."""
    try:
        said = json.loads((folder / SHARE).read_bytes())["run"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ResumeError(
            f"{folder} does not say of which run it is: leave out --resume to record anew"
        ) from None
    found = difference(said, _common(run))
    if found is not None:
        raise other_run(folder, *found)


def _common(run: Mapping[str, Any]) -> dict[str, Any]:
    """Without what each process has of its own, as JSON has it."""
    options = {k: v for k, v in run["options"].items() if k != "stretch"}
    given = {k: v for k, v in run["given"].items() if k != "name"}
    common: dict[str, Any] = json.loads(json.dumps({**run, "options": options, "given": given}))
    return common


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
