"""reports sweep: checkpoints over a Ray cluster of unlike machines."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from . import Commands, UsageError

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "plumbline" / "recordings"


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "sweep",
        help="verify recordings on the devices of a Ray cluster",
        description="A node announces its devices, and how many runs of each at once it takes: "
        "ray start --address HEAD --resources='{\"cuda\": 1}'. Needs "
        "the extra `sweep` of this package here, and Ray and the harness on every node.",
    )
    parser.add_argument(
        "--fixtures", nargs="+", required=True, metavar="URI",
        help="recordings: a path or file:// that all nodes have, http:// or https://",
    )  # fmt: skip
    parser.add_argument("--devices", required=True, help="names, e.g. cpu,cuda,hip")
    parser.add_argument("--address", default="auto", help="of the cluster; auto: the one here")
    parser.add_argument("--out", type=Path, required=True, help="the merged results")
    parser.add_argument("--shards", type=int, help="per device; default: 4 per run at once")
    parser.add_argument(
        "--by", choices=("checkpoints", "layers"), default="checkpoints",
        help="layers: a node fetches only the bytes of its layers, by range requests",
    )  # fmt: skip
    parser.add_argument(
        "--weights", default="", metavar="URI",
        help="where the model's own files are, for recordings that refer to them",
    )  # fmt: skip
    parser.add_argument("--retries", type=int, default=5, help="of a shard whose node died")
    parser.add_argument("--harness", type=Path, help="on every node; default: on its PATH")
    parser.add_argument("--cache", type=Path, default=CACHE, help="of a node (%(default)s)")
    parser.add_argument("options", nargs="*", metavar="-- OPTION", help="of the harness")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Sweeps; the exit code is that of the whole run."""
    devices = [name for name in options.devices.split(",") if name]
    if not devices or len(set(devices)) < len(devices):
        raise UsageError(f"--devices {options.devices}: name each device once")
    if (options.shards is not None and options.shards < 1) or options.retries < 0:
        raise UsageError(
            f"--shards {options.shards}, --retries {options.retries}: need at least 1 and 0"
        )
    from ..fleet import sweep
    from ..fleet.fetch import distinct, recordings_at

    sweep.import_ray()
    weights = options.weights
    recordings = [each for uri in options.fixtures for each in recordings_at(uri, weights)]
    plan = sweep.Plan(
        tuple(distinct(recordings)), options.cache, options.harness, tuple(options.options),
        options.by == "layers",
    )  # fmt: skip
    summary = sweep.sweep(
        plan, devices, options.address, options.shards, options.retries, options.out
    )
    print(f"{options.out}: {summary.checkpoints} checkpoints, {summary.verdict}")
    return summary.exit_code
