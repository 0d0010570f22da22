"""reports render: results as one HTML page and as Markdown."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import Commands, UsageError


def add(commands: Commands) -> None:
    """Declares the command."""
    parser = commands.add_parser("render", help="results as one HTML page, or as Markdown")
    parser.add_argument("results", type=Path, nargs="+", help="files of `harness --json`")
    parser.add_argument("--html", type=Path, help="one file that needs no other and no network")
    parser.add_argument("--markdown", type=Path, help="short, say for the summary of a CI run")
    parser.add_argument(
        "--baseline",
        type=Path,
        action="append",
        default=[],
        help="what to compare with: of `reports baseline`, or results; may be repeated",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes what was asked for; the exit code is 0 also where checkpoints failed."""
    if not (options.html or options.markdown):
        raise UsageError("nothing to write: name --html FILE, --markdown FILE or both")
    from ..files import keep_inputs, replace_text
    from ..reader import read_runs
    from ..render import delta

    outputs = [path for path in (options.html, options.markdown) if path]
    if len({path.resolve() for path in outputs}) < len(outputs):
        raise UsageError(f"--html and --markdown are both {options.html}: name two files")
    for path in outputs:
        keep_inputs(path, [*options.results, *options.baseline])
    runs = read_runs(options.results)
    compared = delta.compare(runs, options.baseline) if options.baseline else None
    if options.markdown:
        from ..render.markdown import markdown

        replace_text(options.markdown, markdown(runs, compared))
    if options.html:
        from ..render.html import html  # matplotlib only where figures are drawn

        replace_text(options.html, html(runs, compared))
    for notice in (run.notice for run in runs if run.notice):
        print(notice)
    return 0
