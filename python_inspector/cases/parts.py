"""A large recording: a folder of parts, each an ordinary recording of some layers of one run.

The model runs once for each part, which takes little time next to recording it. A part is put in
its place when it is complete, so a command continues from what it finds. Processes that make parts
at the same time lock the part that they make. The folder of parts has a hidden name until all are
complete.

Nothing here imports torch, which takes seconds: the other processes start first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..aliases import PACKAGE
from ..errors import ProcessError, RecordError
from ..format.folders import replace_folder
from ..format.strict_json import load_json

MOST = 8
"""Parts of layers: each costs a run of the model, and so much is made again of a killed one."""
RECORDING = "recording.json"
_NAME = re.compile(r"outside|chain|layers-\d+(-\d+)?")
_OFTEN = 0.5
"""Seconds between two looks at whether the process that started this one still runs."""


@dataclass(frozen=True)
class Part:
    """What one recording of the run holds; `chain`: a chained one, with nothing but the chain."""

    name: str
    layers: tuple[int, ...] = ()
    outside: bool = False
    chain: bool = False


def parts_of(layers: Sequence[int], *, chained: bool = False) -> list[Part]:
    """What is in no layer, and groups of neighbouring layers."""
    size = -(-len(layers) // MOST)
    width = len(str(max(layers, default=0)))
    parts = [Part("outside", outside=True)]
    for begin in range(0, len(layers), max(1, size)):
        group = tuple(layers[begin : begin + size])
        ends = dict.fromkeys(f"{index:0{width}}" for index in (group[0], group[-1]))
        parts.append(Part("-".join(["layers", *ends]), group))
    return [Part("chain", chain=True), *parts] if chained else parts


def folder_of(out: Path) -> Path:
    """Where the parts of `out` are until all are complete."""
    return out.absolute().parent / f".{out.absolute().name}.parts"


def complete(folder: Path) -> list[Path]:
    """The parts in `folder` that are."""
    return sorted(path.parent for path in folder.glob(f"*/{RECORDING}"))


def is_of_parts(out: Path) -> bool:
    """Whether a folder holds the parts of a recording and nothing else."""
    names = [path.name for path in out.iterdir()] if out.is_dir() else []
    return bool(names) and all(map(_NAME.fullmatch, names))


def make(parts: Iterable[Part], folder: Path, one: Callable[[Part, Path], None]) -> None:
    """Calls `one` for every part that is not complete and that no other process makes."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        path = folder / part.name
        if (path / RECORDING).exists():
            continue
        with locked(path) as mine:
            if mine and not (path / RECORDING).exists():
                one(part, path)


def put_in_place(parts: Sequence[Part], folder: Path, out: Path) -> None:
    """Moves the folder of complete parts to `out`. RecordError where they are not of one run."""
    first = folder / parts[0].name
    for part in parts[1:]:
        found = _difference(_run(first), _run(folder / part.name))
        if found is not None:
            where, here, there = found
            raise RecordError(
                f"[record] {first}: {where} is {here!r}, that of {folder / part.name} is "
                f"{there!r}: leave out --resume to record all parts again"
            )
    for left in folder.glob(".*"):  # of processes that were killed
        shutil.rmtree(left, ignore_errors=True)
        left.unlink(missing_ok=True)
    replace_folder(folder, out.absolute())


def _run(part: Path) -> dict[str, Any]:
    """What all parts of a run have in common."""
    recording = load_json(part / RECORDING)
    provenance = recording["provenance"]
    names = ("command", "producer", "dtype", "attention", "model", "run")
    return {name: provenance[name] for name in names} | {"config": recording["config"]}


def _difference(here: Any, there: Any, where: str = "") -> tuple[str, Any, Any] | None:
    """The first field in which two JSON values differ, and what they have there."""
    if isinstance(here, dict) and isinstance(there, dict):
        for name in sorted({*here, *there}):
            found = _difference(here.get(name), there.get(name), f"{where}.{name}".lstrip("."))
            if found is not None:
                return found
        return None
    return None if here == there else (where, here, there)


class OtherProcesses:
    """The same command in further processes, which make parts that no other one makes."""

    def __init__(self, words: Sequence[str], count: int) -> None:
        """`words`: of the command after `inspector`."""
        self._words = [*words, "--started-by", str(os.getpid())]
        self._count = count
        self._started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def __enter__(self) -> OtherProcesses:
        here = ("", str(Path.cwd()))
        safe = [] if sys.path[0] in here else ["-P"]  # as this one finds its modules
        for _ in range(self._count):
            said = tempfile.TemporaryFile()
            process = subprocess.Popen(
                [sys.executable, *safe, "-m", PACKAGE, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            self._started.append((process, said))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for process, said in self._started:
            process.kill()  # of a part there is all or nothing
            process.wait()
            said.close()

    def failures(self, *, wait: bool) -> list[str]:
        """How those ended that failed until now, or once all are waited for; their last words."""
        found = []
        for process, said in self._started:
            code = process.wait() if wait else process.poll() or 0
            if code != 0:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                ending = f"exit code {code}" if code > 0 else f"signal {-code}"
                found.append(f"{ending}: {lines[-1] if lines else 'it said nothing'}")
        return found


def end_with(process: int) -> None:
    """Ends this process as soon as `process`, which started it, is no more."""

    def watch() -> None:
        while os.getppid() == process:
            time.sleep(_OFTEN)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """No other command records `out` meanwhile; ProcessError where one does."""
    with locked(out) as mine:
        if not mine:
            raise ProcessError(
                f"[record] {out.absolute()} is being recorded by a process that still runs: wait "
                "for it, or choose another --out"
            )
        yield


@contextmanager
def locked(out: Path) -> Iterator[bool]:
    """Whether `out` is this process's alone meanwhile, by a file next to it."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.parent / f".{out.name}.lock"
    file = _lock(path)
    try:
        yield file is not None
    finally:
        if file is not None:
            path.unlink(missing_ok=True)
            os.close(file)


def _lock(path: Path) -> int | None:
    """The file, created if need be; None where another process has it."""
    import fcntl  # which Windows has not

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


@contextmanager
def kept_or_cleared(out: Path) -> Iterator[None]:
    """Where making parts of `out` fails inside, complete ones stay, and the error says so."""
    try:
        yield
    except BaseException as error:
        if left := complete(folder_of(out)):
            error.add_note(f"{len(left)} complete parts stay in {folder_of(out)} for --resume")
        else:
            clear(out)
        raise


def clear(out: Path) -> None:
    """Removes what a killed command left of `out`'s parts."""
    shutil.rmtree(folder_of(out), ignore_errors=True)
