"""A fleet's results, made up: how long `reports merge` takes, and how much memory it needs.

python tests/python/fleet_simulation.py /tmp/fleet --nodes 1000 --checkpoints 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from sample_results import BLOCKS, checkpoint, run_line, summary_line

ROOT = Path(__file__).parents[2]


def write_shard(path: Path, index: int, nodes: int, selected: int) -> None:
    """What the node `index`, from 0, found: every nodes-th checkpoint."""
    request = {"shard": f"{index + 1}/{nodes}", "shard-by": "layers", "selected": str(selected)}
    statuses = []
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(run_line(request=request), separators=(",", ":")) + "\n")
        for number in range(index, selected, nodes):
            line = checkpoint(number, block=BLOCKS[number % len(BLOCKS)], error=None)
            statuses.append({"status": line["status"]})
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
        file.write(json.dumps(summary_line(statuses), separators=(",", ":")) + "\n")


def main() -> None:
    """Writes all shards, merges them, prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="is made, and removed at the end")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--checkpoints", type=int, default=1_000_000)
    options = parser.parse_args()
    options.folder.mkdir()
    try:
        paths = [options.folder / f"{index}.jsonl" for index in range(options.nodes)]
        for index, path in enumerate(paths):
            write_shard(path, index, options.nodes, options.checkpoints)
        size = sum(path.stat().st_size for path in paths) / 1e6
        out = options.folder / "all.jsonl"
        command = [sys.executable, "-m", "reports", "merge", *map(str, paths), "--out", str(out)]
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        # Of reports or of the harness that it asks for the summary: the larger one.
        print(
            f"{options.nodes} shards, {options.checkpoints} checkpoints, {size:.0f} MB: exit code "
            f"{os.waitstatus_to_exitcode(status)} after {seconds:.0f} s, "
            f"at most {usage.ru_maxrss / 1024:.0f} MB"
        )
    finally:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
