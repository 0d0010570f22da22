"""reports fetch: recordings from a server, whole or what one shard by layers needs of them."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from . import Commands, UsageError
from .sweep import CACHE


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "fetch", help="recordings from a server: all, or what a shard by layers needs"
    )
    parser.add_argument("recordings", nargs="+", metavar="URI", help="as of `sweep --fixtures`")
    parser.add_argument("--out", type=Path, required=True, help="a link to where they are then")
    parser.add_argument("--shard", help="i/n: only the bytes of these layers, by range requests")
    parser.add_argument(
        "--chains", action="store_true", help="the shard also runs chains (harness --mode both)"
    )
    parser.add_argument(
        "--weights", default="", metavar="URI",
        help="where the model's own files are, for recordings that refer to them",
    )  # fmt: skip
    parser.add_argument("--cache", type=Path, default=CACHE, help="(%(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Fetches; prints the command that verifies what was fetched."""
    from ..fleet.fetch import WEIGHTS, Part, distinct, fetched, recordings_at
    from ..fleet.merge import SHARD

    part = None
    if options.shard is not None:
        index, _, count = options.shard.partition("/")
        if not SHARD.fullmatch(options.shard) or int(index) > int(count):
            raise UsageError(f"--shard {options.shard}: needs i/n, 1 to n; of five the second: 2/5")
        part = Part(int(index), int(count), options.chains)
    out: Path = options.out
    if out.exists() and not out.is_symlink():
        raise UsageError(f"--out {out}: is there, and no link that was made here; name another")
    found = [each for uri in options.recordings for each in recordings_at(uri, options.weights)]
    view = fetched(distinct(found), options.cache.expanduser().absolute(), part)
    out.unlink(missing_ok=True)
    out.symlink_to(view)
    command = ["harness", "--fixture", str(out)]
    if part:
        command += ["--shard", options.shard, "--shard-by", "layers"]
    if (view / WEIGHTS).is_dir():
        command += ["--weights", str(out / WEIGHTS)]
    print(shlex.join(command))
    return 0
