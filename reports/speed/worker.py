"""An object in a process of its own, which can be ended while it works."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

GRACE_SECONDS = 10.0  # to end by itself when no more calls come


class Worker:
    """Calls methods of what `make(*arguments)` returns, one at a time, in another process.

    All of it is sent there: `make` is found by its name, arguments and results are pickled.
    """

    def __init__(self, make: Callable[..., object], *arguments: object) -> None:
        """Starts the process; the object is made when its first method is called."""
        spawn = multiprocessing.get_context("spawn")  # a copy of this one would share its threads
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, make, arguments))
        self._process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends the process, at once if it may be at work."""
        self._pipe.close()
        if kind is None:
            self._process.join(GRACE_SECONDS)
        self._process.kill()
        self._process.join()

    def call(self, method: str, *values: object, seconds: float | None = None) -> Any:
        """What the method returns.

        Raises TimeoutError when that takes more than `seconds` (None: any time), and RuntimeError
        with the text of what it raised there, or with how the process ended; it is of no use after
        TimeoutError or its end.
        """
        try:
            self._pipe.send((method, values))
            if not self._pipe.poll(seconds):
                self._process.kill()
                raise TimeoutError
            result, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise RuntimeError(f"its process ended with {self._process.exitcode}") from None
        if error is not None:
            raise RuntimeError(error)
        return result


def _serve(pipe: Connection, make: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Answers until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process ends it
    made = None
    with suppress(EOFError):
        while True:
            method, values = pipe.recv()
            try:
                made = made or make(*arguments)
                pipe.send((getattr(made, method)(*values), None))
            except Exception as error:
                text = " ".join(str(error).split())[:200]
                pipe.send((None, f"{type(error).__name__}: {text}".removesuffix(": ")))
