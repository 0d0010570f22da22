"""Recordings by the names that tables print: "llama-a1/decode-bf16" is one of the project's own."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from ..errors import FormatError

VARIABLE = "PLUMB_FIXTURES"


def own_recordings() -> Path:
    """Where the project's own recordings are: in PLUMB_FIXTURES, else next to the program."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).parents[2] / "fixtures")


def recording_folder(named: Path) -> Path:
    """The folder that a path or a name means, as `harness --fixture` has it.

    Raises FormatError that names the nearest recording where there is neither.
    """
    if named.exists():
        return named
    root = own_recordings()
    if not named.is_absolute() and (root / named).exists():
        return root / named
    if not root.is_dir():
        raise FormatError(
            f"{named}: is no folder here, and the project's own recordings are not at {root}: name "
            f"the folder `fixtures` of a checkout in {VARIABLE}"
        )
    names = [str(path.parent.relative_to(root)) for path in root.glob("*/*/recording.json")]
    nearest = difflib.get_close_matches(str(named), names, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise FormatError(f"{named}: is no folder here, nor a recording of {root}{hint}")
