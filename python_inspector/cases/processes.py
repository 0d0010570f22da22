"""One recording's forward calls, shared by several processes.

Most of a recording's time goes into simulating kernels, and where calls are short, into the Python
that does that: one process leaves an accelerator idle. So further ones make the same run beside it,
each records some of the later calls, and what they recorded is joined to the first one's.

Nothing here imports torch, which takes seconds: the others have to start in the first tenth of one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from python_inspector.described import DESCRIBED
from python_inspector.errors import ProcessError
from python_inspector.models.gpu_memory import memory_of

CORES = 4
"""Of one process: its own, and threads that hash and write."""
ROOM = 8 << 30
"""Bytes of an accelerator that one process needs beside twice the weights."""
LOADED = 3 << 30
"""Bytes of weights that are loaded in the time that recording a call takes."""
_PATIENCE = 30.0
"""Seconds that one has to keep what is finished when it is told to stop."""


def shares(calls: Sequence[int], processes: int) -> list[list[int]]:
    """The calls of each process, by number: the first call, which most often has the most tokens,
    is one share, the others are divided evenly among no more processes than that takes."""
    first, others = list(calls[:1]), list(calls[1:])
    if processes < 2 or not others:
        return [list(calls)]
    most = -(-len(others) // (processes - 1))
    return [first, *(others[i : i + most] for i in range(0, len(others), most))]


def sensible(device: str, model: str, calls: int, *, split: bool = False) -> int:
    """How many processes a machine with this accelerator has room for, and whose loading of the
    model is worth it; `model` is a folder's path, of other models the size is not known. `split`:
    the first call's end can be one's."""
    weights = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))
    memory = memory_of(device) if weights else None
    if memory is None:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    worth_it = (calls - 1) // -(-weights // LOADED)
    most = 2 + worth_it if split and worth_it else 1 + worth_it
    return max(1, min((cores or 1) // CORES, memory // (2 * weights + ROOM), most))


def has_layers(model: str) -> bool:
    """Whether a folder's model is of a described architecture, whose layers stand in a row."""
    try:
        config = json.loads((Path(model) / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    known = isinstance(config, dict) and config.get("model_type") in DESCRIBED
    return known and bool(config.get("num_hidden_layers"))


@dataclass
class _Helper:
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    folder: Path


class Helpers:
    """The processes beside this one. Each leaves a recording of its own next to `out`, where it
    stays if something fails, to be resumed."""

    def __init__(
        self,
        out: Path,
        words: Sequence[str],
        calls: Sequence[Sequence[int]],
        *,
        behind: int | None = None,
        resume: bool,
    ) -> None:
        """`words`: the command that records `out`, after `inspector`; `calls`: of each process;
        `behind`: the forward call of which one more records what stands behind the layers;
        `resume`: they go on where such processes were killed."""
        self._out = out.absolute()
        self._words = list(words)
        self._calls = calls if behind is None else [[behind], *calls]
        self._behind = behind
        self._resume = resume
        self._helpers: list[_Helper] = []

    @property
    def text(self) -> str:
        return f" in {len(self._calls) + 1} processes" if self._calls else ""

    def __enter__(self) -> Helpers:
        folders = [self._folder(calls) for calls in self._calls]
        for old in self._left():
            if not self._resume or not any(folder.name in old.name for folder in folders):
                shutil.rmtree(old, ignore_errors=True)
        self._out.parent.mkdir(parents=True, exist_ok=True)
        for calls, folder in zip(self._calls, folders, strict=True):
            self._helpers.append(self._start(calls, folder))
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
            for folder in self._left():
                shutil.rmtree(folder, ignore_errors=True)

    def recordings(self) -> Iterator[Path]:
        """Each one's, as soon as it is there. ProcessError where one failed."""
        for calls, helper in zip(self._calls, self._helpers, strict=True):
            code = helper.process.wait()
            if code != 0:
                helper.said.seek(0)
                lines = helper.said.read().decode(errors="replace").strip().splitlines()
                raise ProcessError(
                    f"[record] the process for the forward calls {_text(calls)} ended with "
                    f"{_ending(code)}: {lines[-1] if lines else 'it said nothing'}; --jobs 1 "
                    "records all in one process"
                )
            yield helper.folder

    def _start(self, calls: Sequence[int], folder: Path) -> _Helper:
        words = [*self._words, "--calls", _text(calls), "--jobs", "1", "--out", str(folder)]
        words += ["--beside", str(os.getpid())]
        if self._behind is not None and self._behind in calls:
            words += ["--part", "behind"]
        said = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the process is over)
        here = ("", str(Path.cwd()))
        safe = [] if sys.path[0] in here else ["-P"]  # as this one finds its modules
        process = subprocess.Popen(
            [sys.executable, *safe, "-m", "python_inspector", *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C is passed on, once
        )
        return _Helper(process, said, folder)

    def _folder(self, calls: Sequence[int]) -> Path:
        return self._out.parent / f".{self._out.name}.calls-{_text(calls).replace(',', '+')}"

    def _left(self) -> list[Path]:
        """Recordings of such processes, and what killed ones have finished."""
        share = f".{self._out.name}.calls-"
        return [
            path
            for path in self._out.parent.glob(".*")
            if path.name.startswith(f".{share}" if ".partial-" in path.name else share)
        ]


def end_with(process: int) -> None:
    """Interrupts this process as soon as `process`, which started it, is no more or asks for it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may have it ignored

    def watch() -> None:
        while os.getppid() == process:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def _text(calls: Sequence[int]) -> str:
    """As --calls has them."""
    whole = list(calls) == list(range(calls[0], calls[-1] + 1))
    return f"{calls[0]}-{calls[-1]}" if whole and len(calls) > 1 else ",".join(map(str, calls))


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
