"""What is built of C++: the harness, and the judge as a library, without a process."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import HarnessError

if TYPE_CHECKING:
    import torch

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
    """The library: in PLUMB_JUDGE_LIBRARY, next to the binary, or in lib next to its bin; None
    where there is none, and the binary is used instead."""
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


_POINTER, _WORDS = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_TEXT, _DOUBLE, _INT, _SIZE = ctypes.c_char_p, ctypes.c_double, ctypes.c_int, ctypes.c_size_t
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "judge": (_INT, [_TEXT, _TEXT, _TEXT, _INT, _WORDS]),
    "validate": (_INT, [_TEXT, _WORDS]),
    "free": (None, [_POINTER]),
    "limits_new": (_INT, [_TEXT, _WORDS, _WORDS]),
    "limits_set": (_INT, [_POINTER, _POINTER, _SIZE, _WORDS]),
    "limits_gates": (_TEXT, []),
    "limits_judge": (_INT, [_POINTER, _POINTER, _SIZE, _POINTER, _WORDS]),
    "limits_explain": (_INT, [_POINTER, _POINTER, _TEXT, _POINTER, _SIZE, _WORDS]),
    "limits_element": (_DOUBLE, [_POINTER]),
    "limits_free": (None, [_POINTER]),
    "kappas": (None, [_POINTER, _SIZE, _POINTER]),
    "no_less_accurate": (_INT, [_DOUBLE, _DOUBLE, _TEXT]),
    "spread_limit": (_DOUBLE, [_DOUBLE, _DOUBLE, _INT]),
    "bits_limit": (_DOUBLE, [_DOUBLE, _DOUBLE, _DOUBLE]),
    "least_bits": (ctypes.c_int64, []),
}
"""What harness/capi/plumbline_judge.h declares: what each returns and takes."""


class JudgeLibrary:
    """What harness/capi/plumbline_judge.h declares."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
            for name, (returned, taken) in _FUNCTIONS.items():
                function = getattr(library, f"plumbline_{name}")
                function.restype, function.argtypes = returned, taken
                setattr(self, f"_{name}", function)
        except (OSError, AttributeError) as error:
            raise HarnessError(
                f"{path} cannot be used: {error}; build it again with ci/verify, or name another "
                f"in {VARIABLE}"
            ) from None
        self.least_bits: int = self.call("least_bits")
        """Elements below which bits prove nothing."""
        self.gates: list[str] = self.call("limits_gates").decode().split("\n")
        """What a verdict on figures has a number for."""

    def judge(
        self, recording: Path, outputs: Path, *, contract: str = "inferred", margins: bool = True
    ) -> list[dict[str, Any]]:
        """The JSON object of every checkpoint that `outputs` has tensors of.

        Raises HarnessError where nothing was judged.
        """
        paths = (os.fsencode(recording), os.fsencode(outputs))
        words = self.words("judge", *paths, contract.encode(), int(margins))
        return [json.loads(line) for line in words.splitlines()]

    def findings(self, recording: Path) -> list[str]:
        """What is wrong with the recording in a folder; HarnessError where that cannot be said."""
        return self.words("validate", os.fsencode(recording)).splitlines()

    def limits(self, description: str) -> Limits:
        """Those of an output that is described; HarnessError where that makes no sense."""
        return Limits(self, description)

    def kappas(self, sizes: torch.Tensor) -> torch.Tensor:
        """Of groups of these sizes, float64 on the host, how much larger the worst one's error may
        be than a typical one's."""
        sizes = sizes.contiguous()
        out = sizes.clone()
        self.call("kappas", sizes.data_ptr(), sizes.numel(), out.data_ptr())
        return out

    def no_less_accurate(self, error: float, of_reference: float, dtype: str) -> bool:
        """Whether a whole output's error is at most 1.5 times the reference's, or below a floor."""
        return bool(self.call("no_less_accurate", error, of_reference, dtype.encode()))

    def spread_limit(self, mean: float, deviation: float, *, narrow: bool) -> float:
        """What a statistic of correct kernels stays below, of which simulated ones show these."""
        return float(self.call("spread_limit", mean, deviation, int(narrow)))

    def bits_limit(self, mean: float, deviation: float, largest: float) -> float:
        """How many bits correct kernels may have otherwise than their model, of which simulated
        ones show these figures."""
        return float(self.call("bits_limit", mean, deviation, largest))

    def call(self, name: str, *given: Any) -> Any:
        return getattr(self, f"_{name}")(*given)

    def words(self, name: str, *given: Any) -> str:
        """What a function says that ends with a code; HarnessError where that is not 0."""
        text = ctypes.c_void_p()
        code = self.call(name, *given, ctypes.byref(text))
        try:
            words = ctypes.string_at(text.value).decode() if text.value else "out of memory"
        finally:
            self.call("free", text)
        if code != 0:
            raise HarnessError(f"the judge's library ended with {code}: {words}")
        return words


class Limits:
    """What outputs of one call are held to: figures in, ratios out."""

    def __init__(self, library: JudgeLibrary, description: str) -> None:
        self._library, self._at = library, ctypes.c_void_p()
        said = json.loads(library.words("limits_new", description.encode(), ctypes.byref(self._at)))
        self.record: list[tuple[str, int]] = [(name, count) for name, count in said["record"]]
        """What is measured of every output: fields in their order, and numbers of each."""
        self.noise: list[float] = said["noise"]
        """Of each way to round how many times the noise of float32 is taken from distances."""
        self.counts_alike: bool = said["alike"]
        """Whether values of one significand in a row of inputs (alike_in_row) are asked for."""
        self._row = ctypes.c_double * len(library.gates)

    def __del__(self) -> None:
        if getattr(self, "_at", None):
            self._library.call("limits_free", self._at)

    def set(self, values: torch.Tensor) -> None:
        """What the limits are derived from, float64 on the host."""
        values = values.contiguous()
        self._library.words("limits_set", self._at, values.data_ptr(), values.numel())

    def judge(self, record: torch.Tensor) -> dict[str, float]:
        """Statistic over limit by gate of one output, NaN where it has no such gate; `margin` is
        the largest."""
        row = self._row()
        self._library.words("limits_judge", self._at, record.data_ptr(), 1, row)
        return dict(zip(self._library.gates, row, strict=True))

    def explain(self, record: torch.Tensor, details: str, along: torch.Tensor) -> dict[str, Any]:
        """The verdict on one output in words; `details` are JSON, `along` float64 on the host, as
        harness/trace/explained_output.h has them."""
        along = along.contiguous()
        words = self._library.words(
            "limits_explain", self._at, record.data_ptr(), details.encode(), along.data_ptr(),
            along.numel(),
        )  # fmt: skip
        told: dict[str, Any] = json.loads(words)
        return told

    @property
    def element(self) -> float:
        """The largest error of an element that any correct kernel may have, in its size."""
        return float(self._library.call("limits_element", self._at))


@functools.cache
def opened(path: Path) -> JudgeLibrary:
    return JudgeLibrary(path)


_harness: ContextVar[Path | str | None] = ContextVar("plumbline_harness", default=None)


@contextmanager
def judged_by(harness: Path | str | None) -> Iterator[None]:
    """Inside, judge_library() is the one next to the given harness."""
    token = _harness.set(harness)
    try:
        yield
    finally:
        _harness.reset(token)


def judge_library() -> JudgeLibrary:
    """HarnessError where there is none."""
    variables = tuple(os.environ.get(name) for name in (VARIABLE, BINARY_VARIABLE, "PATH"))
    return opened(_library_at(_harness.get(), variables))


@functools.lru_cache(maxsize=16)
def _library_at(harness: Path | str | None, variables: tuple[str | None, ...]) -> Path:
    path = library_of(harness)
    if path is None:
        raise HarnessError(
            f"no {NAME}: build it with ci/verify, install a wheel that has it (ci/wheel), or name "
            f"it in {VARIABLE}"
        )
    return path
