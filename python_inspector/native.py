"""What is built of C++: the harness, and beside it the judge without a process."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from .errors import HarnessError

BINARY_VARIABLE = "PLUMB_HARNESS"
NAME = "libplumbline_judge.so"
VARIABLE = "PLUMB_JUDGE_LIBRARY"


def find_harness(given: Path | str | None = None) -> Path:
    """The harness binary: given, in PLUMB_HARNESS, on PATH, or built in this repository."""
    named = given or os.environ.get(BINARY_VARIABLE)
    if named is not None:
        found = shutil.which(str(named))
        if found is None:
            source = "given" if given else BINARY_VARIABLE
            raise HarnessError(f"{named} ({source}) is no program that can be run")
        return Path(found)
    for path in (None, sysconfig.get_path("scripts")):  # where a wheel puts it, on PATH or not
        if found := shutil.which("harness", path=path):
            return Path(found)
    built = sorted(
        Path(__file__).parents[1].glob("build/*/bin/harness"),
        key=lambda path: path.stat().st_mtime,
    )
    if not built:
        raise HarnessError(
            f"no harness binary: build it with ci/verify, install a wheel that has it (ci/wheel), "
            f"or name it in {BINARY_VARIABLE}"
        )
    return built[-1]


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


def library_of(harness: Path | str | None = None) -> Path | None:
    """That of the harness, given or found; where none is given, it may be named without one."""
    try:
        binary = find_harness(harness)
    except HarnessError:
        if harness is not None:
            raise
        binary = None
    return find_library(binary)


class JudgeLibrary:
    """What harness/capi/plumbline_judge.h declares."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
            self._judge, self._free = library.plumbline_judge, library.plumbline_free
            self._validate = library.plumbline_validate
        except (OSError, AttributeError) as error:
            raise HarnessError(
                f"{path} cannot be used: {error}; build it again with ci/verify, or name another "
                f"in {VARIABLE}"
            ) from None
        self._judge.restype = ctypes.c_int
        self._judge.argtypes = [
            ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int,
            ctypes.POINTER(ctypes.c_void_p),
        ]  # fmt: skip
        self._validate.restype = ctypes.c_int
        self._validate.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p]

    def judge(
        self, recording: Path, outputs: Path, *, contract: str = "inferred", margins: bool = True
    ) -> list[dict[str, Any]]:
        """The JSON object of every checkpoint that `outputs` has tensors of.

        Raises HarnessError where nothing was judged.
        """
        paths = (os.fsencode(recording), os.fsencode(outputs))
        words = self._words(self._judge, *paths, contract.encode(), int(margins))
        return [json.loads(line) for line in words.splitlines()]

    def findings(self, recording: Path) -> list[str]:
        """What is wrong with the recording in a folder; HarnessError where that cannot be said."""
        return self._words(self._validate, os.fsencode(recording)).splitlines()

    def _words(self, function: Any, *given: Any) -> str:
        text = ctypes.c_void_p()
        code = function(*given, ctypes.byref(text))
        try:
            words = ctypes.string_at(text.value).decode() if text.value else "out of memory"
        finally:
            self._free(text)
        if code != 0:
            raise HarnessError(f"the judge's library ended with {code}: {words}")
        return words


@functools.cache
def opened(path: Path) -> JudgeLibrary:
    return JudgeLibrary(path)
