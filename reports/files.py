"""Writes files that are never half written."""

from __future__ import annotations

import fcntl
import lzma
import os
import shlex
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

OWN_FOLDER = ".plumbline"
"""The folder for our files in a user's repository."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time between reading a file and replacing it (its folder's lock)."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def replace_text(path: Path, text: str) -> None:
    """replace_bytes of the text in UTF-8, compressed where the name ends in .xz."""
    content = text.encode()
    if path.suffix == ".xz":
        content = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
    replace_bytes(path, content)


def replace_bytes(path: Path, content: bytes) -> None:
    """The file holds the old content or the new one, whatever ends this process or fills the disk.

    Raises OSError naming the file; the old one is intact then.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to be written, which takes the place of `path` when the block ends well.

    What is there and no file, such as a terminal, a pipe or /dev/null, is written into and stays.
    Raises OSError naming `path`, which is as it was then.
    """
    special = path.exists() and not path.is_file()
    named, path = path, path if special else path.resolve()  # /dev/stdout leads to no path
    temporary = _temporary(named, None if special else path.parent)
    try:
        yield temporary
        if special:
            path.write_bytes(temporary.read_bytes())
            return
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
        temporary.replace(path)
    except OSError as error:
        raise OSError(
            f"{named}: cannot be written ({error.strerror}); it was left as it is"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path, folder: Path | None) -> Path:
    """An empty file in the folder, or where temporary files are. OSError that names `path`."""
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(f"{path}: is read-only; it was left as it is")
    if folder is not None and not folder.exists():
        raise FileNotFoundError(
            f"{path}: cannot be written: there is no folder {folder}; make it "
            f"(mkdir -p {shlex.quote(str(folder))}) or name a file in another folder"
        )
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror}") from error
    os.close(handle)
    return Path(name)


def check_writable(path: Path) -> None:
    """OSError naming a file that could not be replaced: to be known before long work for it."""
    if not path.exists() or path.is_file():
        _temporary(path, path.resolve().parent).unlink()


def keep_inputs(out: Path, inputs: Iterable[Path]) -> None:
    """ValueError where a file that is read would be overwritten with what is made of it."""
    for path in inputs:
        if out.exists() and path.exists() and out.samefile(path):
            raise ValueError(f"{out}: would be overwritten, and is read; name another file")
