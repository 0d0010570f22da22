"""What the judge imports is in memory before a candidate runs: without Landlock one may write to
the files of modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness_runs import ROOT

pytestmark = pytest.mark.usefixtures("harness")

JUDGE = ("api.checking", "api.once", "api.prepared")
MODELS = {"python_inspector.compatibility"}
"""Of transformers, for recordings of whole models."""
LOADED = """
import sys, torch
from python_inspector import Sealed, WrongError, check
from python_inspector.api import worker_process
run = worker_process.Worker.run
def noted(*args):
    print(*sorted(it for it in sys.modules if it.startswith("python_inspector")), sep="\\n")
    run(*args)
worker_process.Worker.run = noted
check("torch:relu", torch.relu, torch.randn(4, 8), sealed=Sealed(spare=False), explain=False)
"""


def imports_of(name: str, file: Path) -> Iterator[str]:
    """Of the package, wherever they are, but not for types."""
    tree = ast.parse(file.read_text())
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
            continue
        if isinstance(node, ast.ImportFrom):
            parts = name.split(".") + ["__init__"] * (file.stem == "__init__")
            above = parts[: len(parts) - node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            yield from (origin, *(f"{origin}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        nodes += ast.iter_child_nodes(node)


def reached(*names: str) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        folder = ROOT / name.replace(".", "/")
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        if name not in found and name.startswith("python_inspector.") and file.is_file():
            found.add(name)
            waiting += imports_of(name, file)
    return found


def test_all_that_the_judge_imports_is_in_memory_before_a_candidate_runs() -> None:
    needed = reached(*(f"python_inspector.{name}" for name in JUDGE)) - MODELS
    assert len(needed) > 100
    run = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, text=True, capture_output=True, check=True
    )
    assert sorted(needed - set(run.stdout.split())) == []
