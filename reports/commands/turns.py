"""reports turns: the cases of `harness bench` and PyTorch's ways of them, measured alternately."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..files import check_writable, replace_text
from ..speed import turns
from ..speed.devices import device_name, unusable
from ..speed.shapes import SHAPES, Sizes
from . import Commands, UsageError


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("turns", help="ours alternating with PyTorch's ways, as ratios")
    parser.add_argument("--shape", required=True, choices=SHAPES)
    parser.add_argument("--harness", type=Path, default=Path("build/cpu/bin/harness"))
    parser.add_argument("--tokens", default="1,512", help="numbers of new tokens: a,b")
    parser.add_argument("--dtype", default="bf16,f32", help="f32, f16 or bf16: a,b")
    parser.add_argument("--device", type=device_name, default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--block", default="all")
    parser.add_argument("--rounds", type=int, default=3, help="of both, alternating")
    parser.add_argument("--seconds", type=float, default=0.2, help="per case and way")
    parser.add_argument("--threads", type=int, default=1, help="more need a machine to themselves")
    parser.add_argument("--out", type=Path, required=True)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measures, prints and writes the ratios; the exit code, 1 where PyTorch is ahead somewhere."""
    problem = unusable(options.device)
    if problem:
        raise UsageError(f"--device {options.device}: {problem}")
    if options.rounds < 1:
        raise UsageError(f"--rounds {options.rounds}: needs at least 1")
    for tokens in options.tokens.split(","):
        if not tokens.isdecimal() or int(tokens) < 1:
            raise UsageError(f"--tokens {options.tokens}: {tokens!r} is no number above 0")
    check_writable(options.out)
    text, behind = "", 0
    for dtype in options.dtype.split(","):
        for tokens in options.tokens.split(","):
            sizes = Sizes(int(tokens), int(tokens), dtype, options.device)
            done = [
                turns.take_turn(options.harness, options.shape, sizes, options.block,
                                options.seconds, options.threads)
                for _ in range(options.rounds)
            ]  # fmt: skip
            found = turns.ratios(done)
            behind += sum(ratio.middle < 1 for ratio in found)
            text = text or "\n".join(turns.origin(done[0])) + "\n"
            title = f"{options.shape}, {tokens} token{'s' * (tokens != '1')}, {dtype}"
            text += "\n".join(turns.summary(title, found)) + "\n"
    print(text, end="")
    replace_text(options.out, text)
    return 1 if behind else 0
