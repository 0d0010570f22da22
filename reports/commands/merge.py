"""reports merge: the results of shards, and of other devices, as those of one run."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import Commands


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("merge", help="results of shards and devices as those of one run")
    parser.add_argument("results", type=Path, nargs="+", help="files of `harness --json`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--harness", type=Path, help="default: on the PATH, or in build/cpu")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Merges; the exit code is that of the whole run."""
    from ..fleet.merge import merge
    from ..fleet.program import find_harness

    summary = merge(options.results, options.out, find_harness(options.harness))
    print(
        f"{options.out}: {summary.checkpoints} checkpoints of {len(options.results)} file(s), "
        f"{summary.verdict}"
    )
    return summary.exit_code
