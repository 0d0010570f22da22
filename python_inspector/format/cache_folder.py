"""A folder of files that processes share: named by what they are made of, bounded, the user's own.

Needs neither torch nor NumPy: the command that shows it is fast.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError

VARIABLE = "PLUMB_CACHE"
MOST = 1 << 30
"""Bytes of all files."""
SUFFIX = ".problem"


def named_folder() -> CacheFolder | None:
    """That of PLUMB_CACHE; None where it names none."""
    named = os.environ.get(VARIABLE, "")
    return CacheFolder(Path(named).expanduser()) if named else None


@dataclass(frozen=True)
class CacheFolder:
    path: Path

    def read(self, name: str) -> Path | None:
        """The file, which counts as used now."""
        file = self.path / f"{name}{SUFFIX}"
        if not self.path.is_dir():
            return None
        self.require_own()
        if not file.is_file():
            return None
        with suppress(OSError):
            os.utime(file)
        return file

    def write(self, name: str, data: bytes) -> None:
        """Puts a file there, whole or not at all, and removes what was not used for longest."""
        if len(data) > MOST // 4:
            return
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.require_own()
        handle, partial = tempfile.mkstemp(dir=self.path)  # with mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(partial).replace(self.path / f"{name}{SUFFIX}")
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
        self._keep_within()

    def remove(self, file: Path) -> None:
        file.unlink(missing_ok=True)

    def clear(self) -> int:
        """Removes all files; how many there were."""
        files = list(self.files()) if self.path.is_dir() else []
        if files:
            self.require_own()
        for file in files:
            self.remove(file)
        return len(files)

    def files(self) -> Iterator[Path]:
        yield from self.path.glob(f"*{SUFFIX}")

    def bytes(self) -> int:
        return sum(size for _, size, _ in self._used())

    def require_own(self) -> None:
        """UsageError where others could put files there: what is read decides verdicts."""
        if not self.path.exists():
            return
        status = self.path.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise UsageError(
                f"{VARIABLE}: {self.path} has mode {status.st_mode & 0o777:04o} and user "
                f"{status.st_uid}; expected mode 0700 of user {os.getuid()}: chmod 700, or name "
                "another folder"
            )

    def _keep_within(self) -> None:
        found = sorted(self._used())
        total = sum(size for _, size, _ in found)
        for _, size, file in found:
            if total <= MOST:
                return
            self.remove(file)
            total -= size

    def _used(self) -> list[tuple[float, int, Path]]:
        """When each was used, its bytes, and where it is; others may remove some meanwhile."""
        found = []
        for file in self.files():
            with suppress(FileNotFoundError):
                status = file.stat()
                found.append((status.st_mtime, status.st_size, file))
        return found
