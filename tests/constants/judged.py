"""Judges what is stored with one constant of the judge moved, and says which verdicts change."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from python_inspector.errors import HarnessError
from python_inspector.native import JudgeLibrary
from tests.constants.changes import FACTORS, Part, said
from tests.constants.sources import Constant
from tests.constants.stored import NOT_WRONG, Stored, read


class Moved:
    """The library that reads its constants while it runs (tests/constants/moved.h)."""

    def __init__(self, path: Path, folder: Path, constants: int) -> None:
        self._judge, self._folder = JudgeLibrary(path), folder
        library = ctypes.CDLL(str(path))
        self._move = library.plumbline_moved
        self._move.restype, self._move.argtypes = None, [ctypes.c_int, ctypes.c_double]
        used = library.plumbline_used
        used.restype = ctypes.POINTER(ctypes.c_bool * constants)
        self._used = used().contents

    def fails(self, it: Stored, constant: int = -1, factor: float = 1.0) -> bool:
        """Whether the judge says that the outputs are wrong, or can say nothing of them."""
        self._move(constant, factor)
        paths = (self._folder / it.recording, self._folder / it.outputs)
        try:
            found = self._judge.judge(*paths, margins=False)
        except HarnessError:
            return True
        finally:
            self._move(-1, 1.0)
        return any(one["status"] not in NOT_WRONG for one in found)

    def as_it_is(self, of: Sequence[Stored]) -> tuple[bool, set[int]]:
        """Whether a kernel fails on any kind of operands, and which constants were read for that:
        of a failure those of the first kind that shows it."""
        read: set[int] = set()
        for it in of:
            ctypes.memset(self._used, 0, ctypes.sizeof(self._used))
            fails = self.fails(it)
            used = {at for at, was in enumerate(self._used) if was}
            if fails:
                return True, used
            read |= used
        return False, read


def judged(library: Path, folder: Path, constants: Sequence[Constant]) -> Part:
    """check()'s judge of files, on all that is stored."""
    moved = Moved(library, folder, len(constants))
    kernels: dict[str, list[Stored]] = defaultdict(list)
    for it in read(folder):
        kernels[it.kernel].append(it)
    out = Part()
    counts: dict[tuple[bool, bool], int] = defaultdict(int)
    for name, of in kernels.items():
        fails, used = moved.as_it_is(of)
        wrong = of[0].wrong
        counts[wrong, fails] += 1
        for at in used:
            for factor in FACTORS:
                changes = out.of(constants[at], factor)
                if any(moved.fails(it, at, factor) for it in of) != fails:
                    changes.add(name, wrong=wrong, fails=not fails)
    out.said = said(counts)
    return out
