"""python -m tests.opinfo [NAME ...]: torch's own kernels on PyTorch's samples of operations.

Prints a line for each, and what is taken for wrong or raises; exit code 1 where anything is.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import torch

from python_inspector.benchmarks.samples import MOST, operations

from .sweep import of_catalogue, row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="softmax; default: the catalogue's"
    )
    parser.add_argument("--every", action="store_true", help="all operations that have samples")
    parser.add_argument(
        "--most", type=int, default=MOST, help="samples of each dtype (%(default)s)"
    )
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=(), help="f32,bf16")
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0")
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = [op.full_name for op in operations()] if options.every else list(of_catalogue())
    total, alarms = Counter[str](), 0
    for name in options.names or every:
        made = row(name, options.most, options.dtypes, options.device)
        print(made, flush=True)
        total += made.counts
        alarms += len(made.alarms)
    counts = ", ".join(f"{count} {status}" for status, count in total.items())
    print(f"{len(options.names or every)} operations, {counts}: {alarms} alarms")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
