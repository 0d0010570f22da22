"""Processes that call functions for check(sealed=...): one waits with its imports done, another is
forked from it and works; what that does to the machine is watched.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..format import scratch
from . import confined, forking, lifeline, machine

PERTURB = 1
"""MALLOC_PERTURB_: memory is filled with its complement, the bytes of sealed_calls.POISON."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): orphans of a worker become children of this process."""
LOOK = 0.05
"""Seconds between two looks at a worker's memory."""
QUIET = 3
"""Looks that find no process, after which none is left: one look may miss what one starts that
ends."""
MOST_PROCESSES = 256
LEAST_ROOM = 20
"""The share of the memory and of each disk that was free which has to stay free."""
DONE, ERROR = "done", "error.json"
"""Files that a worker leaves last: all calls have ended, or one has raised this."""
RAISED = "raised.json"
"""The end of a file's name: what one call has raised that need not succeed."""
WORDS = 600
"""Characters of what a process printed last, in an error."""
MOST_ANSWER = 1 << 20
"""Bytes of an answer, and of an error."""
PATIENCE = 60.0
"""Seconds for the imports of a process that waits, and for what it forks."""
OF_A_MOMENT = ("PYTEST_CURRENT_TEST",)
"""Variables that no process of a function has."""


def printable(text: str) -> str:
    """Without line feeds and what else a terminal obeys: words of a function are no verdict."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class SealedError(Exception):
    """What a worker did instead of its job: the reason of a verdict."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


@dataclass(frozen=True)
class Bounds:
    timeout: float
    """Seconds for the whole job."""
    memory: int | None
    """Bytes of all processes of the worker; None: nine tenths of what is free."""


class Worker:
    """A process that takes one job; arguments and results are in its folder."""

    def __init__(
        self,
        folder: Path,
        process: subprocess.Popen[bytes] | forking.ForkedProcess,
        answers: int,
        said: IO[bytes],
        life: socket.socket,
    ) -> None:
        self.folder = folder
        self._process, self._answers, self._said, self._life = process, answers, said, life
        self._seen: set[int] = set()
        self._heard = b""

    def run(
        self, job: Mapping[str, Any], bounds: Bounds, talk: Callable[[Worker], None] | None = None
    ) -> None:
        """Waits until the job is done; SealedError says what happened instead. Nothing of the
        worker runs afterwards. `talk` asks it for more, once its calls have ended."""
        self._bounds, self._rooms = bounds, machine.rooms()
        self._most = bounds.memory or self._rooms["memory"] * 9 // 10
        self._until = time.monotonic() + bounds.timeout
        before = machine.standing()
        try:
            self._tell(json.dumps(job))
            if talk is not None:
                talk(self)
            self._hang_up()
            while self._process.poll() is None:
                self._look()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(LOOK)
            if left := len(self._its()):
                raise SealedError(f"left {left} processes behind when its calls had ended")
            self._require_success()
        finally:
            self._kill()
            altered = machine.restored(before)
        if altered:
            raise SealedError(f"altered {', '.join(altered)} of the judge's process")
        self._require_plain_files()

    def ask(self, **question: Any) -> Any:
        """The worker's answer."""
        self._tell(json.dumps(question))
        while b"\n" not in self._heard:
            if forking.readable(self._answers, 10 * LOOK):
                heard = os.read(self._answers, 1 << 16)
                self._heard += heard
                if not heard or len(self._heard) > MOST_ANSWER:
                    break
            elif self._process.poll() is not None:
                break
            else:
                self._look()
        line, end, self._heard = self._heard.partition(b"\n")
        if not end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10 * LOOK)
            self._require_success()
            raise SealedError("ended before it had answered")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise SealedError(f"wrote {line[:80]!r} among the answers of its process") from None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing of it runs inside, nor does its time."""
        begin, stopped = time.monotonic(), set[int]()
        while running := {self._process.pid, *self._its()} - stopped:  # some may have started
            machine.signal_all(running, signal.SIGSTOP)
            stopped |= running
        try:
            yield
        finally:
            machine.signal_all(stopped, signal.SIGCONT)
            self._until += time.monotonic() - begin

    def end(self) -> None:
        """Kills what there is of it, and removes its folder."""
        self._kill()
        scratch.drop(self.folder)

    def _its(self) -> list[int]:
        waits = [_ahead._process.pid] if _ahead else []
        found = machine.marked(self._process.pid, waits)
        self._seen.update(found)
        return found

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended: _require_success says how
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _kill(self) -> None:
        if self._said.closed:
            return
        self._process.kill()
        self._process.wait()
        self._hang_up()
        os.close(self._answers)
        self._life.close()
        self._said.close()
        quiet = 0
        while quiet < QUIET:
            others = self._its()
            machine.signal_all(others, signal.SIGKILL)
            quiet = 0 if others else quiet + 1
            time.sleep(LOOK / 10)
        for pid in self._seen - {self._process.pid}:  # children of this process by now
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _look(self) -> None:
        """Whether it keeps within its bounds."""
        if time.monotonic() > self._until:
            raise SealedError(f"did not end within {self._bounds.timeout:g} s")
        others = [pid for pid in self._its() if pid != self._process.pid]
        if len(others) > MOST_PROCESSES:
            raise SealedError(f"started {len(others)} processes, more than {MOST_PROCESSES}")
        rooms = machine.rooms()
        used = sum(map(machine.resident, (self._process.pid, *others)))
        used += max(0, self._rooms.get("/dev/shm", 0) - rooms.get("/dev/shm", 0))
        if used > self._most:
            raise SealedError(
                f"took {used / 2**30:.1f} GiB of memory, more than the {self._most / 2**30:.1f} "
                "GiB that it was given"
            )
        for name, before in self._rooms.items():
            if rooms[name] < before // LEAST_ROOM:
                raise SealedError(
                    f"left {rooms[name] >> 20} MiB of the {before >> 20} MiB free in {name}"
                )

    def _require_success(self) -> None:
        code = self._process.poll()
        error = self.folder / ERROR
        if os.path.lexists(error):
            raise SealedError(f"raised {words_in(error)}")
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                raise SealedError(f"crashed: {signal.Signals(-code).name}{self._last_words()}")
        if not (self.folder / DONE).is_file():
            raise SealedError(
                f"ended its process with exit code {code} before its calls had ended"
                f"{self._last_words()}"
            )

    def _require_plain_files(self) -> None:
        """Links and pipes would give what is written later, or by others."""
        try:
            found = {it.name: it.lstat() for it in self.folder.iterdir() if it.name != "tmp"}
        except OSError as error:
            raise SealedError(f"left a folder that cannot be read: {error.strerror}") from None
        for name, it in found.items():
            if not stat.S_ISREG(it.st_mode) or it.st_nlink != 1:
                raise SealedError(f"left {name}, which is no file of its own")
        if (size := sum(it.st_size for it in found.values())) > self._most:
            raise SealedError(
                f"left {size / 2**30:.1f} GiB of results, more than the memory that it was given"
            )

    def _last_words(self) -> str:
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - WORDS))
        text = self._said.read().decode(errors="replace").strip()
        return f"; it printed last: {text}" if text else ""


class WaitingWorker(Worker):
    """Imports what a job needs, and forks others for it until it has a job of its own. `launcher`:
    a program that runs it."""

    def __init__(
        self, launcher: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        folder, said = _new_places(scratch.make())
        self._control, control = socket.socketpair()
        self._control.settimeout(PATIENCE)
        self._apart: bool | None = None
        self._given = _given()
        answers, theirs = os.pipe()
        life, its = lifeline.of_a_worker()
        passed = (theirs, control.fileno(), its.fileno())
        process = subprocess.Popen(
            [*launcher, sys.executable, "-m", f"{__package__}.sealed_worker", str(folder),
             *map(str, passed)],
            stdin=subprocess.PIPE, stdout=said, stderr=said, pass_fds=passed,
            env={**_environment(), "TMPDIR": str(folder / "tmp"), **(variables or {})},
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        control.close()
        its.close()
        super().__init__(folder, process, answers, said, life)

    @property
    def is_current(self) -> bool:
        """It is there, as it would be started now: what it has imported is what this process's
        variables ask for."""
        return self._process.poll() is None and self._given == _given()

    def standing(self) -> object:
        """What a function may change of it from outside."""
        return machine.standing(self._process.pid)

    def await_imports(self) -> bool:
        """Until they are done; whether the kernel keeps apart what is forked then. Raises OSError
        where this one does not answer."""
        if self._apart is None:
            self._apart = forking.kept_apart(self._control)
        return self._apart

    def forked(self) -> Worker:
        """A process for one job; this one where the kernel would not keep them apart. Raises
        OSError where this one does not answer."""
        if not self.await_imports():
            return self
        folder, said = _new_places(Path(tempfile.mkdtemp(prefix="worker-", dir=self.folder)))
        life, its = lifeline.of_a_worker()
        return Worker(folder, *forking.ask(self._control, folder, said, its), said, life)

    def run(
        self, job: Mapping[str, Any], bounds: Bounds, talk: Callable[[Worker], None] | None = None
    ) -> None:
        self._control.close()  # nothing more is forked
        super().run(job, bounds, talk)

    def end(self) -> None:
        self._control.close()
        super().end()


def _given() -> object:
    """What a process has from this one."""
    return _environment(), Path.cwd()


def _environment() -> dict[str, str]:
    given = {name: it for name, it in os.environ.items() if name not in OF_A_MOMENT}
    return {
        **given, **confined.writable(), "MALLOC_PERTURB_": str(PERTURB),
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip


def _new_places(folder: Path) -> tuple[Path, IO[bytes]]:
    """A worker's folder, and the file of what it prints."""
    (folder / "tmp").mkdir()
    return folder, tempfile.TemporaryFile()  # end() closes it


_ahead: WaitingWorker | None = None
_one = threading.RLock()
"""One worker has a job: what bears a mark is its. Once that is done its thread may have another
one, which smaller cases are given to."""


def start_ahead() -> None:
    """A process imports what workers need while this process does."""
    global _ahead
    with _one:
        _ahead = _ahead or WaitingWorker()


def await_ahead() -> None:
    """Until a process that is started ahead has its imports."""
    with _one:
        if _ahead is not None:
            _ahead.await_imports()


@contextlib.contextmanager
def worker(*, spare: bool, on_gpu: bool = False) -> Iterator[Worker]:
    """A process for one job: forked from the one that waits, or, `on_gpu`, that itself. Its folder
    is there inside. Afterwards one waits where one did; with `spare` in any case."""
    global _ahead
    with _one:
        _become_subreaper()
        waiting, _ahead = _ahead, None
        if waiting is not None and not waiting.is_current:
            waiting.end()
            waiting = None
        stays = spare or waiting is not None
        waiting = waiting or WaitingWorker()
        mine: Worker = waiting
        try:
            mine = waiting if on_gpu else waiting.forked()
        except OSError:
            waiting.end()
            mine = waiting = WaitingWorker()
        except BaseException:
            waiting.end()
            raise
        _ahead = None if mine is waiting else waiting
        before = waiting.standing()
        try:
            yield mine
        finally:
            mine.end()
            if _ahead is not None and _ahead.standing() != before:
                _end_ahead()  # the function has altered it
            if spare:
                _ahead = _ahead or WaitingWorker()
            elif not stays:
                _end_ahead()


@atexit.register
def _end_ahead() -> None:
    global _ahead
    if _ahead is not None:
        _ahead.end()
    _ahead = None


def _forget_ahead() -> None:
    """In a copy of this process: the one that waits is not its own."""
    global _ahead, _one
    _ahead, _one = None, threading.RLock()


os.register_at_fork(after_in_child=_forget_ahead)


def _become_subreaper() -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def words_in(path: Path) -> str:
    """What a worker says that it raised."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or path.lstat().st_size > MOST_ANSWER:
            raise ValueError
        return str(json.loads(path.read_text()))
    except (OSError, ValueError, RecursionError):
        return f"something, and left an {ERROR} that cannot be read"
