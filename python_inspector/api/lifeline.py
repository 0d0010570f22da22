"""Workers end with their judge, whatever ends that: the kernel kills them once the other end of a
socket is closed, which the judge alone has.

That needs no thread in the worker, which a function could keep from running. PR_SET_PDEATHSIG
tells of the end of the thread that started a worker, and the judge may have others. A pipe could be
opened again by a function, and be written to.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
from weakref import WeakSet

from . import forking

_held: WeakSet[socket.socket] = WeakSet()


def of_a_worker() -> tuple[socket.socket, socket.socket]:
    """The judge's end, and the worker's."""
    judge, worker = socket.socketpair()
    _held.add(judge)
    return judge, worker


def end_with(worker: int) -> None:
    """This process and its group are killed when the judge's end is closed."""
    with contextlib.suppress(OSError):  # where the kernel cannot, it runs as long as its calls take
        fcntl.fcntl(worker, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(worker, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(worker, fcntl.F_SETFL, os.O_ASYNC)
    if forking.readable(worker, 0):  # nothing is ever sent
        os._exit(1)


def _forget() -> None:
    """A copy of the judge is another one; it would keep workers."""
    for judge in list(_held):
        judge.close()


os.register_at_fork(after_in_child=_forget)
