"""check(keep=DIR): the case stays on disk, to be judged again without the kernel."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from ..errors import RecordError

CALL, OUTPUTS, LATER = "call", "outputs.safetensors", "outputs-later.safetensors"
"""A recording; what the function returned, and what in a later call, where that had other bits."""
SMALLEST = "smallest"
"""A folder with the smallest case that fails."""


def require_place(keep: Path) -> None:
    """RecordError where a case would be put among other files; an earlier case is replaced."""
    if keep.exists() and not keep.is_dir():
        raise RecordError(f"[check] keep: {keep} is a file, expected a folder")
    others = {path.name for path in keep.iterdir()} if keep.is_dir() else set()
    if others := others - {CALL, OUTPUTS, LATER, SMALLEST}:
        raise RecordError(
            f"[check] keep: {keep} holds {min(others)}, which is none of a case's files: name an "
            "empty folder"
        )


def keep_case(folder: Path, keep: Path, contract: str | None) -> str:
    """Moves the case there, readable by its user alone; the line that judges it again, "" where
    nothing was recorded."""
    keep.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (CALL, OUTPUTS, LATER, SMALLEST):
        old, new = keep / name, folder / name
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
        if new.exists():
            shutil.move(new, old)
    if not (keep / OUTPUTS).is_file():
        return ""
    words = ["harness", "judge", str(keep / CALL), str(keep / OUTPUTS)]
    return shlex.join(words + ([] if contract is None else ["--contract", contract]))
