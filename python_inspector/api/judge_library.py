"""The judge without a process: libplumbline_judge.so, which lies beside the harness binary."""

from __future__ import annotations

import ctypes
import functools
import json
import os
from pathlib import Path
from typing import Any

from ..errors import HarnessError

NAME = "libplumbline_judge.so"
VARIABLE = "PLUMB_JUDGE_LIBRARY"


def find_library(binary: Path | None) -> Path | None:
    """The library: in PLUMB_JUDGE_LIBRARY, beside the binary, or in lib beside its bin; None where
    there is none, and the binary has to do."""
    if named := os.environ.get(VARIABLE):
        if not Path(named).is_file():
            raise HarnessError(f"{named} ({VARIABLE}) is no file")
        return Path(named)
    if binary is None:
        return None
    folder = binary.resolve().parent
    places = (folder / NAME, folder.parent / "lib" / NAME)
    return next((path for path in places if path.is_file()), None)


class JudgeLibrary:
    """What harness/capi/plumbline_judge.h declares."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
            self._judge, self._free = library.plumbline_judge, library.plumbline_free
        except (OSError, AttributeError) as error:
            raise HarnessError(f"{path} cannot be used: {error}") from None
        self._judge.restype = ctypes.c_int
        self._judge.argtypes = [
            ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int,
            ctypes.POINTER(ctypes.c_void_p),
        ]  # fmt: skip
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p]

    def judge(
        self, recording: Path, outputs: Path, *, contract: str = "inferred", margins: bool = True
    ) -> list[dict[str, Any]]:
        """The JSON object of every checkpoint that `outputs` has tensors of.

        Raises HarnessError where nothing was judged.
        """
        text = ctypes.c_void_p()
        paths = (os.fsencode(recording), os.fsencode(outputs))
        code = self._judge(*paths, contract.encode(), int(margins), ctypes.byref(text))
        try:
            words = ctypes.string_at(text.value).decode() if text.value else "out of memory"
        finally:
            self._free(text)
        if code != 0:
            raise HarnessError(f"the judge's library ended with {code}: {words}")
        return [json.loads(line) for line in words.splitlines()]


@functools.cache
def opened(path: Path) -> JudgeLibrary:
    return JudgeLibrary(path)
