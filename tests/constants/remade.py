"""Moves a constant in Python and records once more what stored kernels are judged by.

A constant is a number that a module of FOLDERS gives a name in capitals. It is moved as the module
is imported, in a process of its own: what is made of it then moves with it. No kernel runs again:
the outputs are the stored ones.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import CodeType

from tests.constants.changes import FACTORS, Part, said
from tests.constants.left_out import PYTHON

ROOT = Path(__file__).parents[2]
PACKAGE = "python_inspector"
FOLDERS = ("trace", "recorder")


@dataclass(frozen=True)
class Constant:
    name: str
    file: str
    value: str


def constants() -> list[Constant]:
    """Those of the judge, in the order of their files."""
    return [it for file in _files() for it in _of(file)]


def _files() -> list[str]:
    found = (p for of in FOLDERS for p in (ROOT / PACKAGE / of).glob("*.py"))
    return sorted([*(str(p.relative_to(ROOT)) for p in found), f"{PACKAGE}/effort.py"])


def _of(file: str) -> Iterator[Constant]:
    text = (ROOT / file).read_text()
    for name, value in _assigned(ast.parse(text)):
        if name not in PYTHON.get(file, ()):
            yield Constant(name, file, ast.get_source_segment(text, value) or "")


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names in capitals, and expressions that are numbers."""
    for node in tree.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        names, values = [target], [value]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            names, values = target.elts, value.elts
        for one, of in zip(names, values, strict=False):
            if isinstance(one, ast.Name) and one.id.isupper() and _is_number(of):
                yield one.id, of


def _is_number(value: ast.expr) -> bool:
    parts = list(ast.walk(value))
    numbers = (isinstance(it, ast.Constant) and type(it.value) in (int, float) for it in parts)
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Name, ast.operator, ast.unaryop, ast.Load)
    return any(numbers) and all(isinstance(it, allowed) for it in parts)


class _Moves(importlib.machinery.SourceFileLoader):
    """Imports a module with one of its constants moved; whole numbers stay such."""

    def __init__(self, name: str, constant: Constant, factor: float) -> None:
        super().__init__(name, str(ROOT / constant.file))
        self._name, self._factor = constant.name, factor

    def get_code(self, fullname: str) -> CodeType:
        text = Path(self.path).read_text()
        lines = text.splitlines()
        value = dict(_assigned(ast.parse(text)))[self._name]
        assert value.end_lineno == value.lineno, self._name
        line = lines[value.lineno - 1]
        begin, end = value.col_offset, value.end_col_offset
        moved = f"(lambda it: type(it)(it * {self._factor}))({line[begin:end]})"
        lines[value.lineno - 1] = line[:begin] + moved + line[end:]
        return compile("\n".join(lines), self.path, "exec")


class Finder(importlib.machinery.PathFinder):
    """Finds the module of one constant, moved, before others find it."""

    def __init__(self, constant: Constant, factor: float) -> None:
        self.module = constant.file.removesuffix(".py").replace("/", ".")
        self._constant, self._factor = constant, factor

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != self.module:
            return None
        return importlib.util.spec_from_loader(name, _Moves(name, self._constant, self._factor))


Verdicts = dict[tuple[str, bool], bool]
"""By kernel, and whether it is wrong, whether it fails on any kind of operands."""


def remade(folder: Path, step: tuple[int, int], report: Callable[[str], None]) -> Part:
    """check() on a part of what is stored (stored.cases), with each constant moved alone."""
    before = verdicts(folder, step)
    counts: dict[tuple[bool, bool], int] = defaultdict(int)
    for (_, wrong), fails in before.items():
        counts[wrong, fails] += 1
    out = Part(said(counts))
    for constant in constants():
        for factor in FACTORS:
            changes = out.of(constant, factor)
            for (name, wrong), fails in verdicts(folder, step, constant, factor).items():
                if fails != before[name, wrong]:
                    changes.add(name, wrong=wrong, fails=fails)
            found = (len(it) for it in (changes.missed, changes.alarms, changes.mended))
            report(f"{constant.file} {constant.name} x {factor:g}: {', '.join(map(str, found))}")
    return out


def verdicts(
    folder: Path, step: tuple[int, int], constant: Constant | None = None, factor: float = 1.0
) -> Verdicts:
    """Records in a process of its own what some stored kernels are judged by, and judges them.
    `step`: one in so many problems of the corpus, and operations."""
    with get_context("fork").Pool(1) as pool:
        return pool.apply(_verdicts, (folder, step, constant, factor))


def _verdicts(
    folder: Path, step: tuple[int, int], constant: Constant | None, factor: float
) -> Verdicts:
    assert not any(it.startswith(f"{PACKAGE}.trace") for it in sys.modules)
    os.environ.pop("PLUMB_CACHE", None)
    if constant is not None:
        sys.meta_path.insert(0, Finder(constant, factor))
    from python_inspector.native import judge_library
    from tests.constants import stored

    outputs = defaultdict(list)
    for it in stored.read(folder):
        outputs[it.recording].append(it)
    fails: Verdicts = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, case in stored.cases(step):
            known = outputs.get(f"{place}/{stored.RECORDING}", ())
            if not known:
                continue
            try:
                case.save(Path(made) / place)
            except Exception:  # nothing is derived then: no kernel is judged
                fails.update(((it.kernel, it.wrong), True) for it in known)
                continue
            for it in known:
                paths = (Path(made) / it.recording, folder / it.outputs)
                found = judge_library().judge(*paths, margins=False)
                bad = any(one["status"] not in stored.NOT_WRONG for one in found)
                key = (it.kernel, it.wrong)
                fails[key] = fails.get(key, False) or bad
            shutil.rmtree(Path(made) / place)
    return fails
