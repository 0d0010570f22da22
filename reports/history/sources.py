"""What a name on the command line means: files, or runs of the history."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import OWN_FOLDER
from . import baseline
from .figures import Run
from .results import read_results

if TYPE_CHECKING:
    from .store import Store  # SQLAlchemy, which files alone do not need

VARIABLE = "PLUMB_HISTORY"


def repository(folder: Path | None = None) -> Path:
    """The root of the git repository around a folder, else the folder itself."""
    folder = folder or Path.cwd()
    return Path(_git(folder, "rev-parse", "--show-toplevel") or folder)


def database() -> str:
    """Where the history is unless --db says: $PLUMB_HISTORY, else a file in the repository."""
    return os.environ.get(VARIABLE) or str(repository() / OWN_FOLDER / "history.sqlite")


def read_file(path: Path) -> list[Run]:
    """The runs of a file of `harness --json` or of a baseline. Raises OSError and ValueError."""
    if baseline.is_baseline(path):
        return [baseline.read(path).as_run()]
    return read_results(path)


def find(name: str, store: Callable[[], Store]) -> list[Run]:
    """Files, separated by commas, or what Store.find knows: "last", "#7", a commit.

    A name of git's, such as HEAD~1, is looked up where no file has it. Raises OSError, ValueError.
    """
    paths = [Path(part) for part in name.split(",")]
    if any(path.is_file() for path in paths):
        return [run for path in paths for run in read_file(path)]
    if len(paths) > 1 or ("/" in name and paths[0].suffix):
        raise FileNotFoundError(f"{name}: there is no such file")
    history = store()
    commit = commit_of(name)
    kept = commit and any(run.commit == commit for run in history.runs())
    if not kept and commit.startswith(name.lower()):
        commit = ""  # the beginning of a commit kept here may by chance begin another one of git's
    return history.load(history.find(commit or name))


def commit_of(name: str, folder: Path | None = None) -> str:
    """The commit that git knows by this name, or nothing."""
    return _git(folder or Path.cwd(), "rev-parse", "--verify", "--quiet", "--end-of-options",
                f"{name}^{{commit}}")  # fmt: skip


def measured_commit(name: str, folder: Path | None = None) -> str:
    """The commit that a name of git's or 7 to 40 hexadecimal digits identify.

    All 40 digits may be of a commit that is not here, as in a shallow clone; fewer must be known
    where there is a repository. ValueError says what to do.
    """
    folder = folder or Path.cwd()
    if found := commit_of(name, folder):
        return found
    if not re.fullmatch("(?i)[0-9a-f]{7,40}", name):
        raise ValueError(
            f"{name!r} is no commit: give 7 to 40 hexadecimal digits, or a name that git knows here"
        )
    if len(name) < 40 and _git(folder, "rev-parse", "--git-dir"):
        raise ValueError(
            f"git knows no commit {name} in {repository(folder)}: give all 40 digits, get it with "
            "git fetch (--unshallow), or call this where it is known"
        )
    return name.lower()


def at_commit(run: Run, commit: str = "", dirty: bool | None = None) -> Run:
    """The run with its commit: this one, or the working tree's. A run that has one keeps it.

    `dirty` by default: whether a file that git tracks has uncommitted changes.
    """
    if run.provenance.commit and not commit:
        return run
    if dirty is None and not commit and commit_of("HEAD"):
        dirty = bool(_git(Path.cwd(), "status", "--porcelain", "--untracked-files=no"))
    commit = commit or commit_of("HEAD")
    committed = _git(Path.cwd(), "show", "-s", "--format=%cI", commit) if commit else ""
    source = replace(run.provenance, commit=commit, committed=committed, dirty=dirty)
    return replace(run, provenance=source)


def author() -> str:
    """Who git says is at work here, else the system."""
    name, mail = (_git(Path.cwd(), "config", f"user.{key}") for key in ("name", "email"))
    return f"{name} <{mail}>" if name and mail else name or os.environ.get("USER", "unknown")


def _git(folder: Path, *words: str) -> str:
    """What git prints, or nothing where it fails or is not there."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
