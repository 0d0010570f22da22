"""reports baseline: the short form of runs, which later ones are compared with."""

from __future__ import annotations

import argparse
from pathlib import Path

from reports.commands import Commands


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("baseline", help="the short form of runs, to compare later ones")
    parser.add_argument("results", type=Path, nargs="+", help="files of `harness --json`")
    parser.add_argument("--device", help="of which; default: the only one")
    parser.add_argument("--out", type=Path, required=True, help="must not be there yet: later "
                        "figures are taken by `python -m reports history accept`")  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the baseline; the exit code."""
    from reports import baseline
    from reports.history.results import read_results
    from reports.history.sources import at_commit

    if options.out.exists():
        raise ValueError(
            f"{options.out}: is there already: python -m reports history accept RESULTS "
            f"{options.out} takes what is better, and with --reason what is worse"
        )
    runs = [at_commit(run) for path in options.results for run in read_results(path)]
    made = baseline.of_runs(runs, options.out, options.device)
    baseline.write(made)
    print(f"{options.out}: {len(made.checkpoints)} checkpoints")
    return 0
