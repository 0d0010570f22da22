"""reports rivals: measure PyTorch's ways of the cases of `harness bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..speed.devices import device_name, unusable
from ..speed.shapes import SHAPES, Sizes
from . import Commands, UsageError


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("rivals", help="measure PyTorch's ways of the same cases")
    parser.add_argument("--shape", required=True, choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--context", type=int, default=0, help="keys in all; 0: as many as tokens")
    parser.add_argument("--dtype", default="bf16", choices=("f32", "f16", "bf16"))
    parser.add_argument("--device", type=device_name, default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--block", default="all")
    parser.add_argument("--quick", action="store_true", help="leave out what is slow to compile")
    parser.add_argument("--seconds", type=float, default=0.5, help="per way")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measures and writes the lines; the exit code."""
    context = options.context or options.tokens
    if not 1 <= options.tokens <= context:
        raise UsageError(
            f"--tokens {options.tokens}, --context {context}: need 1 <= tokens <= context"
        )
    from ..speed import rivals  # torch only where it is needed

    problem = unusable(options.device)
    if problem:
        raise UsageError(f"--device {options.device}: {problem}")
    sizes = Sizes(options.tokens, context, options.dtype, options.device)
    known = rivals.case_names(SHAPES[options.shape], sizes)
    unknown = set(options.block.split(",")) - known
    if unknown:
        raise UsageError(
            f"--block {', '.join(sorted(unknown))}: known are {', '.join(sorted(known))}"
        )
    return rivals.run(
        SHAPES[options.shape], sizes, options.out, options.block, options.quick,
        options.seconds, options.threads,
    )  # fmt: skip
