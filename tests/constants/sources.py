"""The judge's constants in C++, and a copy of the sources that reads them while it runs.

A constant is a member of LimitConstants, or a `constexpr` of a number with a name in a file of
FOLDERS. The sources that are in use stay as they are: constants there cost nothing.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ci.limits import COMMENT, STRUCT
from tests.constants.left_out import NATIVE

ROOT = Path(__file__).parents[2]
FOLDERS = ("chain", "judge", "recording", "referee", "replay", "trace")
LIMITS = "harness/judge/limits.h"
COPY = Path("build/constants/source")
BINARY = Path("build/constants/binary")
LIBRARY = BINARY / "bin/libplumbline_judge.so"
_NAMED = re.compile(
    r"^ *(?:inline |static )*(?:constexpr|const) (?P<type>double|int64_t|size_t|int) "
    r"(?P<of>k[A-Z]\w* =[^;{}]*);[^\n]*\n",
    re.MULTILINE,
)
_PART = re.compile(r"(k[A-Z]\w*) = (.+)", re.DOTALL)
_EXPORTED = """
extern "C" void plumbline_moved(int constant, double times) { plumb::moved::move(constant, times); }
extern "C" bool* plumbline_used() { return plumb::moved::used; }
"""


@dataclass(frozen=True)
class Constant:
    name: str
    file: str
    value: str
    """As it is written."""
    type: str = "double"

    def read(self, at: int) -> str:
        return f"(::plumb::moved::read<{self.type}>({at}, {self.value}))"


def constants() -> list[Constant]:
    """Those of the judge, in the order of their files."""
    return [*_of_limits(), *(it for file in _files() for it in _named(file))]


def _of_limits() -> Iterator[Constant]:
    struct = STRUCT.search((ROOT / LIMITS).read_text())
    assert struct, LIMITS
    for type, name, value in re.findall(
        r"(double|int64_t)\s+(\w+)\s*=\s*([-+.\w]+);", COMMENT.sub("", struct[1])
    ):
        yield Constant(name, LIMITS, value, type)


def _files() -> list[str]:
    found = (p for of in FOLDERS for p in (ROOT / "harness" / of).iterdir())
    return sorted(str(p.relative_to(ROOT)) for p in found if p.suffix in (".h", ".cpp"))


def _named(file: str) -> Iterator[Constant]:
    for found in _NAMED.finditer((ROOT / file).read_text()):
        for name, value in _parts(found["of"]):
            if name not in NATIVE.get(file, ()):
                yield Constant(name, file, value, found["type"])


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Of `kA = 1, kB = 2`."""
    for part in re.split(r", (?=k[A-Z]\w* =)", text):
        found = _PART.fullmatch(part)
        assert found, part
        yield found[1], found[2]


def copied(all_of_them: list[Constant]) -> None:
    """Writes the copy; a file that is there as it should be stays, so that little is built."""
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "CMakeLists.txt", "ci/cmake", "kernels",
         "blocks", "harness", "fixtures/schema", "tests/constants", "tests/faults"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    for file in files:
        source, to = ROOT / file, ROOT / COPY / file
        if file == "CMakeLists.txt":
            whole, part = "add_subdirectory(tests)", "add_subdirectory(tests/constants)"
            _write(to, source.read_text().replace(whole, part).encode())
            continue
        if source.suffix not in (".h", ".cpp") or not file.startswith("harness/"):
            _write(to, source.read_bytes())
            continue
        _write(to, patched(file, all_of_them).encode())
    for stale in set(_tree(ROOT / COPY)) - {ROOT / COPY / file for file in files}:
        stale.unlink()


def _tree(folder: Path) -> Iterator[Path]:
    return (it for it in folder.rglob("*") if it.is_file())


def _write(to: Path, content: bytes) -> None:
    if to.is_file() and to.read_bytes() == content:
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(content)


def patched(file: str, all_of_them: list[Constant]) -> str:
    """A source whose constants are read while it runs."""
    text = (ROOT / file).read_text()
    place = {(it.file, it.name): at for at, it in enumerate(all_of_them)}

    def limit(found: re.Match[str]) -> str:
        at = place.get((LIMITS, found[1]))
        return found[0] if at is None else all_of_them[at].read(at)

    named: list[str] = []

    def define(found: re.Match[str]) -> str:
        out = ""
        for name, _ in _parts(found["of"]):
            at = place.get((file, name))
            if at is not None:
                named.append(name)
                out += f"#define {name} {all_of_them[at].read(at)}\n"
        return out or found[0]

    changed = re.sub(r"\b(?:ph::)?kLimits\.(\w+)", limit, _NAMED.sub(define, text))
    if changed == text and file != "harness/capi/plumbline_judge.cpp":
        return text
    if file == "harness/capi/plumbline_judge.cpp":
        changed += _EXPORTED
    if file.endswith(".cpp"):  # several are compiled as one
        changed += "".join(f"#undef {name}\n" for name in named)
    include = '#include "tests/constants/moved.h"\n'
    if file.endswith(".h"):
        return changed.replace("#pragma once\n", f"#pragma once\n{include}", 1)
    return include + changed


def built(jobs: int, target: str) -> list[Constant]:
    """Builds a program that reads its constants while it runs."""
    found = constants()
    copied(found)
    configure = [
        "cmake", "-S", str(COPY), "-B", str(BINARY), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_UNITY_BUILD=ON", "-DPLUMB_CUDA=OFF", "-DPLUMB_HIP=OFF", "-DPLUMB_EMU=OFF",
        "-DPLUMB_TESTS=OFF",
    ]  # fmt: skip
    for command in (configure, ["ninja", "-C", str(BINARY), f"-j{jobs}", target]):
        subprocess.run(command, cwd=ROOT, check=True)
    return found
