#!/usr/bin/env python3
"""Measures how far correct code goes beyond the forecast of a chained error, token by token.

usage: ci/excess.py [--seeds N] [--from SEED] [--batch B] [--harness PATH]

Records tiny Gemma 2 (hidden size 64, bf16, a static cache) under N seeds in a chained run with
single tokens, replays it on the CPU and prints, for each kind of step and block, how the excess
(chained error over its forecast) spreads: the standard deviation s of its logarithm, the largest,
how many exceed 2, and how many would by a normal distribution. `ChainRow::excess_limit`
(harness/judge/chain_figures.h) widens the limit of 2 for few vectors by this evidence. Needs .venv.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections import defaultdict
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LIMIT = 2.0  # chain_excess in harness/judge/limits.h
MODEL = "--model tiny:gemma2-a4 --dtype bf16 --cache static --max-length 16 --tokens 3 --steps 4"
Excesses = dict[tuple[str, str], list[float]]  # by prompt or step, and block


def measure(seed: int, batch: int, harness: Path, found: Excesses) -> None:
    """Adds a seed's. RuntimeError where it cannot be recorded or replayed."""
    # torch: after the options are known good
    from python_inspector.cli.inspector import main as inspector

    with TemporaryDirectory() as place:
        folder, results = Path(place) / "tiny" / "excess", Path(place) / "results.jsonl"
        options = [*MODEL.split(), "--seed", str(seed), "--batch", str(batch), "--chained"]
        with redirect_stdout(sys.stderr):
            code = inspector(["record", *options, "--no-internals", "--out", str(folder)])
        if code != 0:
            raise RuntimeError(f"seed {seed}: could not be recorded")
        command = [harness, "--mode", "chained", "--device", "cpu", "--fixture", folder]
        done = subprocess.run(
            [*map(str, command), "--json", str(results)], capture_output=True, text=True
        )
        if done.returncode not in (0, 1):  # a chain beyond its limit is evidence, too
            raise RuntimeError(f"seed {seed}: {done.stdout}{done.stderr}")
        lines = map(json.loads, results.read_text().splitlines())
        rows = [row for line in lines if line.get("chain") for row in line["chain"]["rows"]]
    for row in rows:
        excess = float(row["excess"])
        if excess > 0 and row["block"] != "embedding":  # which has no forecast
            found["step" if row["step"] else "prompt", row["block"]].append(excess)


def summary(found: Excesses) -> str:
    """A line for each kind."""
    lines = [f"{'':24} {'n':>5} {'e^s':>7} {'largest':>8} {'over 2':>7} {'expected':>9}"]
    for (kind, block), excesses in sorted(found.items()):
        logs = [math.log(excess) for excess in excesses]
        normal = statistics.NormalDist(statistics.fmean(logs), statistics.stdev(logs))
        share = 1 - normal.cdf(math.log(LIMIT))
        lines.append(
            f"{f'{kind} {block}':24} {len(logs):5} {f'e^{normal.stdev:.2f}':>7} "
            f"{max(excesses):8.2f} {sum(excess > LIMIT for excess in excesses):7} "
            f"{f'1 in {1 / share:.0f}' if share > 1e-9 else 'never':>9}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--from", dest="first", type=int, default=101, metavar="SEED")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--harness", type=Path, default=ROOT / "build/cpu/bin/harness")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: needs at least 2")
    found: Excesses = defaultdict(list)
    try:
        for seed in range(options.first, options.first + options.seeds):
            measure(seed, options.batch, options.harness, found)
    except (OSError, RuntimeError) as error:
        print(f"excess: {error}", file=sys.stderr)
        return 3
    print(summary(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
