"""reports model: measure a whole model, ours alternating with transformers."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from ..files import check_writable, replace_text
from ..speed import rival_model
from ..speed.devices import device_name
from . import Commands, UsageError


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("model", help="measure a whole model next to transformers")
    parser.add_argument("--shape", required=True, choices=rival_model.PUBLISHED)
    parser.add_argument("--harness", type=Path, default=Path("build/cpu/bin/harness"))
    parser.add_argument("--tokens", type=int, default=128, help="of the prompt")
    parser.add_argument("--steps", type=int, default=32, help="single tokens behind it")
    parser.add_argument("--rounds", type=int, default=3, help="of both, alternating")
    parser.add_argument("--dtype", default="bf16", choices=("f32", "f16", "bf16"))
    parser.add_argument("--device", type=device_name, default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--compiled", action="store_true",
                        help="also its step by torch.compile with a static cache")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=0, metavar="SECONDS",
                        help="in all; what is not done by then is a gap; 0: never")  # fmt: skip
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measures, prints and writes a line per way; the exit code, 1 where no way has a figure."""
    for name in ("tokens", "steps", "rounds"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} {getattr(options, name)}: needs at least 1")
    if not 0 <= options.timeout < math.inf:
        raise UsageError(f"--timeout {options.timeout:g}: needs seconds, 0 for any time")
    check_writable(options.out)
    plan = rival_model.Plan(
        rival_model.Work(
            options.tokens, options.steps, options.device, options.dtype, options.threads
        ),
        rival_model.WAYS if options.compiled else rival_model.WAYS[:1],
        options.rounds,
        options.timeout,
    )
    config = rival_model.published_config(options.shape)
    lines = rival_model.compare(options.shape, config, options.harness, plan)
    replace_text(options.out, "".join(json.dumps(line) + "\n" for line in lines))
    print(rival_model.summary(lines), end="")
    return 0 if any(line["theirs"] for line in lines) else 1
