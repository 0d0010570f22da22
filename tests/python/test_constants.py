"""Constants of the judge that are moved (tests/constants)."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from ci.limits import source_constants
from tests.constants import remade, sources
from tests.constants.changes import Part, table
from tests.constants.left_out import NATIVE, PYTHON


def test_every_limit_and_every_named_number_is_found() -> None:
    found = {(it.file, it.name) for it in sources.constants()}
    limits = source_constants(Path(sources.LIMITS))
    assert {(sources.LIMITS, name) for name in limits} <= found
    assert ("harness/recording/layout.cpp", "kTileSide") in found
    assert ("harness/judge/sums.h", "kChunk") not in found
    in_python = {(it.file, it.name): it.value for it in remade.constants()}
    assert in_python["python_inspector/trace/arithmetic.py", "SUMS"] == "0.5 * U"


@pytest.mark.parametrize("left_out", [NATIVE, PYTHON])
def test_what_is_left_out_is_there(left_out: dict[str, dict[str, str]]) -> None:
    for file, names in left_out.items():
        text = Path(file).read_text()
        for name in names:
            assert re.search(rf"\b{name}(:[^=\n]+)?( =|, _?[A-Z])", text), f"{file} has no {name}"


def test_the_copy_reads_every_constant() -> None:
    constants = sources.constants()
    read = set()
    for file in {it.file for it in constants} | {"harness/judge/limits.cpp"}:
        read |= set(re.findall(r"moved::read<\w+>\((\d+),", sources.patched(file, constants)))
    named = [at for at, it in enumerate(constants) if it.file != sources.LIMITS]
    assert {str(at) for at in named} <= read
    text = sources.patched("harness/judge/limits.cpp", constants)
    assert "kLimits." not in text
    assert "(::plumb::moved::read<double>(0, 0.43)) * u_store" in text


@pytest.mark.parametrize(
    ("name", "factor", "value"), [("LONGEST", 2.0, 1 << 17), ("LONGEST", 0.5, 1 << 15)]
)
def test_a_number_is_moved_as_its_module_is_imported(name: str, factor: float, value: int) -> None:
    constant = next(it for it in remade.constants() if it.name == name)
    finder = remade.Finder(constant, factor)
    spec = finder.find_spec(finder.module)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert getattr(module, name) == value
    assert type(getattr(module, name)) is int


def test_the_table_counts_both_ways() -> None:
    constants = sources.constants()
    part = Part("3 judged")
    part.of(constants[0], 2.0).add("a", wrong=True, fails=False)
    part.of(constants[0], 0.5).add("b", wrong=False, fails=True)
    part.of(constants[1], 2.0)
    text = table({"check()": part}, constants[:3])
    assert re.search(r"^  rounding +0\.43 +1 +0 +0 +1$", text, re.MULTILINE)
    assert "read, and change no verdict:\n  nearest_growth" in text
    assert "read by no verdict:\n  truncation_growth" in text
