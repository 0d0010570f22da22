"""The `plumbline` command: hands over to inspector, harness and reports, which remain."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from .. import __version__, exit_codes
from ..errors import HarnessError
from ..usage import did_you_mean
from . import cache
from . import inspector as cli
from .judge import FORMATS

COMMANDS = {
    "record": ("inspector", "record", "run a model and record it"),
    "show": ("inspector", "show", "summarise a recording"),
    "validate": ("inspector", "validate", "check a recording, or all below a folder"),
    "check": ("inspector", "check", "judge a kernel against any torch code"),
    "problem": ("inspector", "problem", "what a reference and its inputs cannot show"),
    "mcp": ("inspector", "mcp", "the judge as tools for agents (Model Context Protocol, stdio)"),
    "verify": ("harness", "verify", "replay recordings on devices and judge every output"),
    "export": ("harness", "export", "operands of a checkpoint as plain safetensors"),
    "judge": ("harness", "judge", "judge outputs of a program, FILE.py:KERNEL, a benchmark's form"),
    "devices": ("harness", "devices", "devices, usable or not"),
    "report": ("reports", "render", "results as a page, Markdown or text"),
    "history": ("reports", "history", "what became worse, and since when"),
    "merge": ("reports", "merge", "results of several machines as one"),
}
"""By name: the program that does it, what it is called there, and what it does."""
PROGRAMS = {
    "inspector": "all that records",
    "harness": "all that replays and judges",
    "reports": "all that compares, keeps and shows",
}


def main() -> int:
    """Runs the command of sys.argv; its exit code."""
    name, *words = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"plumbline {__version__}")
        return 0
    if name in PROGRAMS:
        return _hand_over(name, words)
    if name in COMMANDS:
        program, there, _ = COMMANDS[name]
        if name == "judge" and words and words[0] in FORMATS:
            return _hand_over("inspector", ["judge", *words])
        if name == "judge" and words and ".py:" in words[0]:
            sealed = [] if "--sealed" in words else ["--sealed"]
            return _hand_over("inspector", ["check", *words, *sealed])
        return _hand_over(program, [there, *words])
    if name == "exit-codes":
        print(exit_codes.listed())
        return 0
    if name == "cache":
        return cache.main(words)
    hint = did_you_mean(name, [*COMMANDS, *PROGRAMS, "cache"])
    print(f"plumbline: there is no command {name!r}{hint} (plumbline --help)", file=sys.stderr)
    return 2


def _help() -> str:
    rows = [(name, about) for name, (_, _, about) in COMMANDS.items()]
    rows.append(("cache [clear]", "what is kept of problems that were judged, and where"))
    rows.append(("exit-codes", "what the codes of all commands mean"))
    rows += [(f"{name} COMMAND", about) for name, about in PROGRAMS.items()]
    lines = [f"  {name:20} {about}" for name, about in rows]
    return "\n".join(("usage: plumbline COMMAND ..., of which --help says more", "", *lines))


def _hand_over(program: str, words: Sequence[str]) -> int:
    if program == "inspector":
        sys.argv = ["inspector", *words]
        return cli.main()
    if program == "reports":
        reports = importlib.import_module("plumbline.reports.__main__")  # in a checkout, too
        return int(reports.main(list(words)))
    from ..native import find_harness

    try:
        binary = str(find_harness())
    except HarnessError as error:
        print(f"plumbline: {error}", file=sys.stderr)
        return 3
    os.execv(binary, ["harness", *words])


if __name__ == "__main__":
    sys.exit(main())
