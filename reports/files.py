"""Writes files that are never half written."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
    """replace_bytes of the text in UTF-8."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """The file holds the old content or the new one, whatever ends this process or fills the disk.

    Raises OSError naming the file; the old one is intact then.
    """
    named, path = path, path.resolve()
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(f"{named}: is read-only; it was left as it is")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OSError(f"{named}: cannot be written: {error.strerror}") from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
        temporary.replace(path)
    except OSError as error:
        raise OSError(
            f"{named}: cannot be written ({error.strerror}); it was left as it is"
        ) from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
