"""reports model: measure a whole model, ours and transformers in turn."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from reports.commands import Commands
from reports.files import check_writable, replace_text

MODELS = ("llama3-8b", "llama3.2-1b", "gemma2-2b", "zamba2-1.2b")


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("model", help="measure a whole model in turn with transformers")
    parser.add_argument("--shape", required=True, choices=MODELS)
    parser.add_argument("--harness", type=Path, default=Path("build/cpu/bin/harness"))
    parser.add_argument("--tokens", type=int, default=128, help="of the prompt")
    parser.add_argument("--steps", type=int, default=32, help="single tokens behind it")
    parser.add_argument("--rounds", type=int, default=3, help="of both, in turn")
    parser.add_argument("--dtype", default="bf16", choices=("f32", "f16", "bf16"))
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--compiled", action="store_true", help="torch.compile and a static cache")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measures, prints and writes the line; the exit code."""
    from reports import rival_model  # torch only where it is needed

    plan = rival_model.Plan(
        options.tokens, options.steps, options.rounds, options.device, options.dtype,
        options.compiled, options.threads,
    )  # fmt: skip
    check_writable(options.out)
    config = rival_model.published_config(options.shape)
    try:
        line = rival_model.compare(options.shape, config, options.harness, plan)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    replace_text(options.out, json.dumps(line) + "\n")
    print(rival_model.summary(line), end="")
    return 0
