"""One recording's run, shared by several processes.

Most of a recording's time goes into simulating kernels, and where calls are short, into the Python
that does that: one process leaves an accelerator idle. So further ones make the same run beside it,
each records a later stretch of it, and what they recorded is joined to the first one's.

Nothing here imports torch, which takes seconds: the others have to start in the first tenth of one.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from .. import interrupts
from ..aliases import PACKAGE
from ..errors import ProcessError
from ..format.folders import left_by_the_dead
from ..stretches import Stretch, text_of

_PATIENCE = 30.0
"""Seconds that one has to keep what is finished when it is told to stop."""
_OFTEN = 0.5
"""Seconds between two looks at who has gone, or asks for it."""


@dataclass
class _Helper:
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    folder: Path


class Helpers:
    """The processes beside this one. Each leaves a recording of its own next to `out`, where it
    stays if something fails, to be resumed."""

    def __init__(
        self, out: Path, words: Sequence[str], stretches: Sequence[Stretch], *, resume: bool
    ) -> None:
        """`words`: the command that records `out`, after `inspector`; `stretches`: of each process;
        `resume`: they go on where such processes were killed."""
        self._out = out.absolute()
        self._words = list(words)
        self._stretches = stretches
        self._resume = resume
        self._helpers: list[_Helper] = []

    @property
    def text(self) -> str:
        return f" in {len(self._stretches) + 1} processes" if self._stretches else ""

    def __enter__(self) -> Helpers:
        folders = [self._folder(stretch) for stretch in self._stretches]
        if not self._resume:  # else it may be refused, and what is finished is to stay
            clear(self._out)
        self._out.parent.mkdir(parents=True, exist_ok=True)
        for stretch, folder in zip(self._stretches, folders, strict=True):
            self._helpers.append(self._start(stretch, folder))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for helper in self._helpers:
            if helper.process.poll() is None:
                helper.process.send_signal(signal.SIGINT)
        for helper in self._helpers:
            try:
                helper.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                helper.process.kill()
                helper.process.wait()
            helper.said.close()
        if kind is None:
            clear(self._out)

    def recordings(self) -> Iterator[Path]:
        """Each one's, as soon as it is there. ProcessError where one failed."""
        for stretch, helper in zip(self._stretches, self._helpers, strict=True):
            code = _wait(helper.process)
            if code != 0:
                helper.said.seek(0)
                lines = helper.said.read().decode(errors="replace").strip().splitlines()
                raise ProcessError(
                    f"[record] the process for the stretch {text_of(stretch)} ended with "
                    f"{_ending(code)}: {lines[-1] if lines else 'it said nothing'}; --jobs 1 "
                    "records all in one process"
                )
            yield helper.folder

    def _start(self, stretch: Stretch, folder: Path) -> _Helper:
        words = [*self._words, "--stretch", text_of(stretch), "--out", str(folder)]
        words += ["--beside", str(os.getpid())]
        said = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the process is over)
        here = ("", str(Path.cwd()))
        safe = [] if sys.path[0] in here else ["-P"]  # as this one finds its modules
        process = subprocess.Popen(
            [sys.executable, *safe, "-m", PACKAGE, *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C is passed on, once
        )
        return _Helper(process, said, folder)

    def _folder(self, stretch: Stretch) -> Path:
        name = text_of(stretch).replace(":", "-")
        return self._out.parent / f".{self._out.name}.stretch-{name}"


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """No other command records `out` meanwhile; ProcessError where one does."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.parent / f".{out.name}.lock"
    file = _locked(path)
    if file is None:
        raise ProcessError(
            f"[record] {out} is being recorded by a process that still runs: wait for it, or "
            "choose another --out"
        )
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def clear(out: Path) -> None:
    """What processes that recorded parts of `out` have left, whether they were done or killed."""
    share = f".{glob.escape(out.name)}.stretch-*"
    killed = left_by_the_dead(out.parent.glob(f".{share}.partial-*"))
    done = [path for path in out.parent.glob(share) if ".partial-" not in path.name]
    for folder in killed + done:
        shutil.rmtree(folder, ignore_errors=True)


def _locked(path: Path) -> int | None:
    """The file, created if need be; None where somebody else has it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        except BlockingIOError:
            os.close(file)
            return None
        except FileNotFoundError:
            pass
        os.close(file)  # whoever had it has removed it since it was opened


def end_with(process: int) -> None:
    """Interrupts this process as soon as `process`, which started it, is no more or asks for it."""
    interrupts.obey()

    def watch() -> None:
        while os.getppid() == process:
            time.sleep(_OFTEN)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. KeyboardInterrupt also where one got lost."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_OFTEN)
            interrupts.check()
            return code
        interrupts.check()


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
