"""How the process of a sealed function is forked from one that has torch imported. That one never
holds a reference, and no function runs in it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import IO

APART, ALONE = b"+", b"-"
MOST = 4096
"""Bytes of a folder's name, and of a process's number."""


class ForkedProcess:
    """What a worker needs of subprocess.Popen, of a process that has become this one's child."""

    def __init__(self, pid: int, stdin: IO[bytes]) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                readable(ended, timeout)
            finally:
                os.close(ended)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def readable(descriptor: int, timeout: float | None) -> bool:
    """Waits so many seconds. poll(2), because select(2) refuses descriptors above 1023."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(None if timeout is None else 1000 * timeout))


def kept_apart(control: socket.socket) -> bool:
    """Whether the kernel keeps what the process at the other end forks from that; waits for its
    imports. Raises OSError where it has ended, or takes too long."""
    said = control.recv(1)
    if not said:
        raise ConnectionError("it has ended")
    return said == APART


def ask(
    control: socket.socket, folder: Path, said: IO[bytes], life: socket.socket
) -> tuple[ForkedProcess, int]:
    """Has the process at the other end fork one: that, and where its answers are read; `life` is
    its end of a lifeline. Raises OSError where there is none in time. This process is the one that
    orphans are given to."""
    stdin, to_it = os.pipe()
    answers, its = os.pipe()
    job = os.fdopen(to_it, "wb")
    try:
        socket.send_fds(control, [os.fsencode(folder)], [stdin, said.fileno(), its, life.fileno()])
        number = control.recv(MOST)
        if not number:
            raise ConnectionError("it has ended")
        return ForkedProcess(int(number), job), answers
    except OSError:
        job.close()
        os.close(answers)
        raise
    finally:
        os.close(stdin)
        os.close(its)
        life.close()


def serve(control: socket.socket, *, apart: bool) -> tuple[Path, int, int] | None:
    """In every process that is forked: its folder, where its answers are written, its end of a
    lifeline. In this one None, once the other end is closed."""
    with contextlib.suppress(OSError):  # it has been closed
        control.send(APART if apart else ALONE)
    while True:
        words = b""
        with contextlib.suppress(OSError):
            words, descriptors, _, _ = socket.recv_fds(control, MOST, 4)
        if not words:
            return None
        mine = _forked(control, descriptors)
        for descriptor in descriptors[:2] if mine else descriptors:
            os.close(descriptor)
        if mine:
            folder = Path(os.fsdecode(words))
            os.environ["TMPDIR"], tempfile.tempdir = str(folder / "tmp"), None
            return folder, descriptors[2], descriptors[3]


def _forked(control: socket.socket, descriptors: list[int]) -> bool:
    """True in a process that has the first descriptors as its own. It is an orphan: when it ends,
    another process than this is notified."""
    told, tell = os.pipe()
    middle = os.fork()
    if middle:
        os.close(tell)
        with os.fdopen(told, "rb") as heard:
            number = heard.read()
        os.waitpid(middle, 0)
        if not number:  # there was no room for another process
            control.close()
            return False
        control.send(number)
        return False
    pid = os.fork()
    if pid:
        os.write(tell, str(pid).encode())
        os._exit(0)
    os.close(told)
    os.close(tell)
    control.close()
    os.setsid()
    for target, source in enumerate((descriptors[0], descriptors[1], descriptors[1])):
        os.dup2(source, target)
    return True
