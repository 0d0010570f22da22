"""Processes of code that needs torch and transformers: each begins as a copy of one that has them.

A fresh process takes six seconds of CPU to import both.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    ["python_inspector.cli.record", "transformers.models.llama.modeling_llama"]
)


class Forked:
    """A process that runs `code` as `python -c` does; what it prints is in files of `folder`."""

    def __init__(self, code: str, words: Sequence[str], folder: Path, cwd: Path) -> None:
        self._files = [folder / "stdout", folder / "stderr"]
        given = (code, list(words), self._files, cwd, dict(os.environ))
        self._process = _server.Process(target=_run, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._files[0].read_text() if self._files[0].exists() else ""

    @property
    def stderr(self) -> str:
        return self._files[1].read_text() if self._files[1].exists() else ""

    @property
    def returncode(self) -> int | None:
        """As of subprocess: the signal below zero, None while it runs."""
        return self._process.exitcode

    def wait(self) -> None:
        self._process.join()

    def send_signal(self, by: int) -> None:
        os.kill(self.pid, by)


def _run(
    code: str, words: list[str], files: list[Path], cwd: Path, environment: dict[str, str]
) -> None:
    for stream, file in zip((sys.stdout, sys.stderr), files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), stream.fileno())
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *words]
    exec(code, {"__name__": "__main__"})
