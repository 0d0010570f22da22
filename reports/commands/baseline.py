"""reports baseline: the short form of runs, which later ones are compared with."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from . import Commands

if TYPE_CHECKING:
    from ..history.figures import Checkpoint
    from ..results import Key

MOST = 20  # failures that are named


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("baseline", help="the short form of runs, to compare later ones")
    parser.add_argument("results", type=Path, nargs="+", help="files of `harness --json`")
    parser.add_argument("--device", help="of which; default: the only one")
    parser.add_argument("--out", type=Path, required=True, help="must not be there yet: later "
                        "figures are taken by `reports history accept`")  # fmt: skip
    parser.add_argument("--passing", action="store_true", help="leave out what fails; otherwise "
                        "nothing is written then, and the exit code is 1")  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the baseline; the exit code."""
    from ..history import baseline
    from ..history.results import read_results
    from ..history.sources import at_commit

    if options.out.exists():
        raise ValueError(
            f"{options.out}: is there already: reports history accept RESULTS "
            f"{options.out} takes what is better, and with --reason what is worse"
        )
    runs = [at_commit(run) for path in options.results for run in read_results(path)]
    for one in runs:
        if not one.complete:
            raise ValueError(
                f"{one.name}: was cut short after {len(one.checkpoints)} checkpoints; run it again"
            )
    made, failing = baseline.without_failures(baseline.of_runs(runs, options.out, options.device))
    if failing:
        _say(failing, len(made.checkpoints))
    if failing and not (options.passing and made.checkpoints):
        others = len(made.checkpoints)
        hint = f"; --passing keeps the {others} others" if others else ""
        print(f"{options.out}: not written{hint}")
        return 1
    baseline.write(made)
    print(f"{options.out}: {len(made.checkpoints)} checkpoints")
    return 0


def _say(failing: dict[Key, Checkpoint], others: int) -> None:
    from ..history.words import place

    counts = Counter(checkpoint.status for checkpoint in failing.values())
    kinds = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    print(f"{len(failing)} of {len(failing) + others} checkpoints fail: {kinds}")
    for key in sorted(failing)[:MOST]:
        print(f"  {failing[key].status:<14} {place(key)}")
    if len(failing) > MOST:
        print(f"  and {len(failing) - MOST} more")
