"""Processes that call functions for check(sealed=...): one waits with its imports done while
another works; what it does to the machine is watched.

A function that attacks the machine is not held back: it runs as the same user.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PERTURB = 1
"""MALLOC_PERTURB_: memory is filled with its complement, the bytes of sealed_worker.POISON."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): orphans of a worker become children of this process."""
TOKEN = "PLUMB_SEALED"
LOOK = 0.05
"""Seconds between two looks at a worker's memory."""
MOST_PROCESSES = 256
DONE, ERROR = "done", "error.json"
"""Files that a worker leaves last: all calls have ended, or one has raised this."""
WORDS = 600
"""Characters of what a process printed last, in an error."""


class SealedError(Exception):
    """What a worker did instead of its job: the reason of a verdict."""


@dataclass(frozen=True)
class Bounds:
    timeout: float
    """Seconds for the whole job."""
    memory: int | None
    """Bytes of all processes of the worker; None: nine tenths of what is free."""


class Worker:
    """A process that waits for a job."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # end() closes it
        variables = {
            "MALLOC_PERTURB_": str(PERTURB), TOKEN: self._token, "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.sealed_worker"], stdin=subprocess.PIPE,
            stdout=self._said, stderr=self._said, env=os.environ | variables,
            start_new_session=True,
        )  # fmt: skip

    def run(self, job: Mapping[str, Any], folder: Path, bounds: Bounds) -> None:
        """Waits until the job is done; SealedError says what happened instead. Nothing of the
        worker runs afterwards."""
        most = bounds.memory or _free_memory() * 9 // 10
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended: _end says how
                assert self._process.stdin is not None
                with self._process.stdin as job_line:
                    job_line.write(json.dumps(job).encode() + b"\n")
            self._watch(bounds.timeout, most)
            if left := len(self._others()):
                raise SealedError(f"left {left} processes behind when its calls had ended")
            self._require_success(folder)
        finally:
            self.end()

    def end(self) -> None:
        """Kills what there is of it."""
        self._process.kill()
        self._process.wait()
        self._said.close()
        while others := self._others():  # again, for what was started meanwhile
            for pid in others:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in others:  # children of this process since the worker ended
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _watch(self, timeout: float, most: int) -> None:
        until = time.monotonic() + timeout
        while self._process.poll() is None:
            if time.monotonic() > until:
                raise SealedError(f"did not end within {timeout:g} s")
            others = self._others()
            if len(others) > MOST_PROCESSES:
                raise SealedError(f"started {len(others)} processes, more than {MOST_PROCESSES}")
            used = sum(map(_resident, (self._process.pid, *others)))
            if used > most:
                raise SealedError(
                    f"took {used / 2**30:.1f} GiB of memory, more than the {most / 2**30:.1f} GiB "
                    "that it was given"
                )
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LOOK)

    def _others(self) -> list[int]:
        """Further processes that have the token or the session of this one, and still run."""
        mark = f"{TOKEN}={self._token}".encode()
        found = []
        for pid in _processes():
            if pid == self._process.pid:
                continue
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] == b"Z":
                    continue
                ours = int(fields[3]) == self._process.pid
                if ours or mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def _require_success(self, folder: Path) -> None:
        code = self._process.returncode
        error = folder / ERROR
        if error.is_file():
            raise SealedError(f"raised {json.loads(error.read_text())}")
        if code < 0:
            with contextlib.suppress(ValueError):
                raise SealedError(f"crashed: {signal.Signals(-code).name}{self._last_words()}")
        if not (folder / DONE).is_file():
            raise SealedError(
                f"ended its process with exit code {code} before its calls had ended"
                f"{self._last_words()}"
            )

    def _last_words(self) -> str:
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - WORDS))
        text = self._said.read().decode(errors="replace").strip()
        return f"; it printed last: {text}" if text else ""


_spare: Worker | None = None


def run(job: Mapping[str, Any], folder: Path, bounds: Bounds, *, spare: bool) -> None:
    """Runs a job in the process that waits, or a new one; afterwards a `spare` one waits."""
    global _spare
    _become_subreaper()
    worker, _spare = _spare or Worker(), None
    try:
        worker.run(job, folder, bounds)
    finally:
        if spare:
            _spare = Worker()


@atexit.register
def _end_spare() -> None:
    if _spare is not None:
        _spare.end()


def _become_subreaper() -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def _processes() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _free_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    line = next(line for line in lines if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024
