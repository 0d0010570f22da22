"""reports table: the figures of `harness bench` next to PyTorch's."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import Commands


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("table", help="a Markdown table of JSON lines of both")
    parser.add_argument("files", type=Path, nargs="+")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the table; the exit code."""
    from ..speed.table import markdown, read_lines

    print(markdown(read_lines(options.files)), end="")
    return 0
