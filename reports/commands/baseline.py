"""reports baseline: the short form of runs, which later ones are compared with."""

from __future__ import annotations

import argparse
from pathlib import Path

from reports.commands import Commands


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("baseline", help="the short form of runs, to compare later ones")
    parser.add_argument("results", type=Path, nargs="+", help="files of `harness --json`")
    parser.add_argument("--out", type=Path, required=True)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the baseline; the exit code."""
    from reports import baseline

    count = baseline.write(options.results, options.out)
    print(f"{options.out}: {count} checkpoints")
    return 0
