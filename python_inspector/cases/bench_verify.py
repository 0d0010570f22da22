"""What verifying costs compared with Python: `inspector bench verify`.

The harness over all committed recordings on the CPU, against one Python process that imports
transformers and runs the same forwards once. Both are whole processes, timed alternately; the best
of the rounds counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..aliases import PACKAGE
from ..native import find_harness

GOAL = 0.1
"""Verifying must take less than this share of Python's time."""


def run_forwards() -> None:
    """The forwards of every committed recording of a model, without recording them."""
    from ..models.inputs import run_model
    from . import run
    from .model_cases import MODEL_CASES

    for case in MODEL_CASES:
        model = run.load_model(case.source)
        run_model(model, case.plan(case.ids(model)))


def _seconds(command: Sequence[str | Path]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="inspector bench verify", description=__doc__)
    parser.add_argument("--fixtures", type=Path, default=Path("fixtures"))
    parser.add_argument("--harness", help="the binary (default: PLUMB_HARNESS, PATH, build/)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forwards", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.forwards:
        run_forwards()
        return 0
    verify = [find_harness(options.harness), "--fixture", options.fixtures, "--device", "cpu"]
    python = [sys.executable, "-m", f"{PACKAGE}.cases.bench_verify", "--forwards"]
    times = [(_seconds(verify), _seconds(python)) for _ in range(options.rounds)]
    harness_s, python_s = (min(column) for column in zip(*times, strict=True))
    print(f"harness, all recordings on cpu       {harness_s:7.2f} s")
    print(f"python, import and the same forwards {python_s:7.2f} s")
    print(f"ratio                                {harness_s / python_s:7.3f}   goal < {GOAL}")
    return 0 if harness_s < GOAL * python_s else 1


if __name__ == "__main__":
    sys.exit(main())
