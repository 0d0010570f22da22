"""The harness, which judges: where it is, and what it makes of results."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path

from ..json_lines import Line

BUILT = Path(__file__).parents[2] / "build" / "cpu" / "bin" / "harness"


def find_harness(named: Path | None = None) -> Path:
    """The program that was named, else the one on the PATH, else the one built here. ValueError."""
    if named:
        return named
    for path in (None, sysconfig.get_path("scripts")):  # where a wheel puts it, on PATH or not
        if found := shutil.which("harness", path=path):
            return Path(found)
    if BUILT.is_file():
        return BUILT
    raise ValueError("no harness on the PATH nor in build/cpu/bin; name one with --harness")


def summary_of(results: Path, harness: Path) -> Line:
    """The summary object of a file of a run and its checkpoints. ValueError with what is wrong."""
    command = [str(harness), "summary", str(results)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ValueError(f"{harness}: cannot be run: {error.strerror}; see --harness") from error
    if done.returncode != 0:
        raise ValueError(f"{harness} summary: {done.stderr.strip() or f'exit {done.returncode}'}")
    try:
        summary: Line = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise ValueError(f"{harness}: gave no summary; name the harness by --harness") from error
    return summary
