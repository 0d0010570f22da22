"""python -m reports: rivals, model (measure PyTorch), table (beside `harness bench`), baseline."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from reports import baseline
from reports.shapes import SHAPES, Sizes
from reports.table import markdown, read_lines


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    rivals = commands.add_parser("rivals", help="measure PyTorch's ways of the same cases")
    rivals.add_argument("--shape", required=True, choices=SHAPES)
    rivals.add_argument("--tokens", type=int, default=4096)
    rivals.add_argument("--context", type=int, default=0, help="keys in all; 0: as many as tokens")
    rivals.add_argument("--dtype", default="bf16", choices=("f32", "f16", "bf16"))
    rivals.add_argument("--device", default="cpu", help="cpu or cuda")
    rivals.add_argument("--block", default="all")
    rivals.add_argument("--quick", action="store_true", help="leave out what is slow to compile")
    rivals.add_argument("--seconds", type=float, default=0.5, help="per way")
    rivals.add_argument("--threads", type=int, default=0)
    rivals.add_argument("--out", type=Path, required=True)
    whole = commands.add_parser("model", help="measure a whole model in turn with transformers")
    whole.add_argument(
        "--shape", required=True, choices=("llama3-8b", "llama3.2-1b", "gemma2-2b", "zamba2-1.2b")
    )
    whole.add_argument("--harness", type=Path, default=Path("build/cpu/bin/harness"))
    whole.add_argument("--tokens", type=int, default=128, help="of the prompt")
    whole.add_argument("--steps", type=int, default=32, help="single tokens behind it")
    whole.add_argument("--rounds", type=int, default=3, help="of both, in turn")
    whole.add_argument("--dtype", default="bf16", choices=("f32", "f16", "bf16"))
    whole.add_argument("--device", default="cpu", help="cpu or cuda")
    whole.add_argument("--compiled", action="store_true", help="torch.compile and a static cache")
    whole.add_argument("--threads", type=int, default=0)
    whole.add_argument("--out", type=Path, required=True)
    table = commands.add_parser("table", help="a Markdown table of JSON lines of both")
    table.add_argument("files", type=Path, nargs="+")
    accepted = commands.add_parser("baseline", help="the short form of runs, to compare later ones")
    accepted.add_argument("results", type=Path, nargs="+", help="files of `harness --json`")
    accepted.add_argument("--out", type=Path, required=True)
    return parser


def compare_model(options: argparse.Namespace) -> int:
    """Measures, prints and writes the line; the exit code."""
    from reports import rival_model  # torch only where it is needed

    plan = rival_model.Plan(
        options.tokens, options.steps, options.rounds, options.device, options.dtype,
        options.compiled, options.threads,
    )  # fmt: skip
    try:
        config = rival_model.published_config(options.shape)
        line = rival_model.compare(options.shape, config, options.harness, plan)
        options.out.write_text(json.dumps(line) + "\n")
    except (OSError, RuntimeError) as error:
        print(f"reports: {error}", file=sys.stderr)
        return 3
    print(rival_model.summary(line), end="")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; the exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command in ("table", "baseline"):
        try:
            if options.command == "table":
                print(markdown(read_lines(options.files)), end="")
            else:
                count = baseline.write(options.results, options.out)
                print(f"{options.out}: {count} checkpoints")
        except (OSError, ValueError) as error:
            print(f"reports: {error}", file=sys.stderr)
            return 3
        return 0
    if options.command == "model":
        return compare_model(options)
    context = options.context or options.tokens
    if not 1 <= options.tokens <= context:
        parser.error(f"--tokens {options.tokens}, --context {context}: need 1 <= tokens <= context")
    from reports import rivals  # torch only where it is needed

    problem = rivals.unusable(options.device)
    if problem:
        parser.error(f"--device {options.device}: {problem}")
    sizes = Sizes(options.tokens, context, options.dtype, options.device)
    known = rivals.case_names(SHAPES[options.shape], sizes)
    unknown = set(options.block.split(",")) - known
    if unknown:
        parser.error(f"--block {', '.join(sorted(unknown))}: known are {', '.join(sorted(known))}")
    try:
        return rivals.run(
            SHAPES[options.shape], sizes, options.out, options.block, options.quick,
            options.seconds, options.threads,
        )  # fmt: skip
    except OSError as error:
        print(f"reports: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
