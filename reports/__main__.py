"""reports: what the harness measured, compared, kept and shown."""

from __future__ import annotations

import argparse
import gc
import os
import sys

from .beside import Parser, __version__, advice_for
from .commands import (
    UsageError,
    baseline,
    corpus,
    fetch,
    history,
    merge,
    model,
    render,
    rivals,
    support,
    sweep,
    table,
    turns,
)
from .terminal import printable_lines

COMMANDS = (
    rivals, model, turns, table, baseline, history, render, merge, sweep, fetch, support, corpus,
)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = Parser(prog="reports", description=__doc__)
    parser.add_argument("--version", action="version", version=f"reports {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; the exit code, 130 after Ctrl-C."""
    gc.set_threshold(100_000)  # what a command reads stays: not worth looking through for cycles
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        code = int(options.run(options))
        sys.stdout.flush()  # a closed pipe is known only then
        return code
    except UsageError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("reports: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ImportError as error:
        if (text := advice_for(f"reports {options.command}", error)) is None:
            raise
        print(f"reports: {text}", file=sys.stderr)
        return 3
    except (OSError, ValueError) as error:
        print(f"reports: {printable_lines(str(error))}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
