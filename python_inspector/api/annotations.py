"""Annotations of GitHub Actions: `::error file=kernel.py,line=3::text` is shown at that line."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LEVELS = {"pass": "", "blind": "warning", "unsupported": "warning"}
"""By status; any other is an error."""
NAMES = ("ModelNew", "custom_kernel")
"""Candidates whose name a form prescribes."""


def add_annotations(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--annotate", action=argparse.BooleanOptionalAction, default=in_actions(),
        help="lines for GitHub Actions on stderr; by default where GITHUB_ACTIONS is true",
    )  # fmt: skip


def in_actions() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotate(named: Any, verdicts: Iterable[Any]) -> None:
    """Of what is named as commands take it: a file, FILE.py:NAME, or nothing that has a line."""
    file, _, name = str(named or "").partition(".py:")
    path = Path(f"{file}.py" if name else file)
    for verdict in verdicts:
        if line := annotation(verdict.status, str(verdict), path, _line_of(path, name)):
            print(line, file=sys.stderr)


def annotation(status: str, text: str, file: Path, line: int) -> str:
    """Empty of a pass."""
    level = LEVELS.get(status, "error")
    if not level:
        return ""
    place = f"file={_escaped(str(file), properties=True)},line={line}"
    return f"::{level} {place},title=plumbline {status}::{_escaped(text)}"


def _escaped(text: str, *, properties: bool = False) -> str:
    for sign in "%\r\n" + (":," if properties else ""):
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def _line_of(path: Path, name: str) -> int:
    """Where the kernel is defined; 1 where that is not seen."""
    try:
        nodes = ast.parse(path.read_text()).body
    except (OSError, SyntaxError, ValueError):
        return 1
    wanted = (name, *NAMES, f"{path.parent.name}_kernel_impl")
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return next((it.lineno for it in nodes if isinstance(it, kinds) and it.name in wanted), 1)
