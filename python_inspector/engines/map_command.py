"""inspector map: proposes which module and weight of an engine is which recorded one."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..named_code import load


def add_map(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "FILE.py:FUNCTION returns a torch model and a function that runs it on ids; prints its "
        "modules with the recorded outputs that they give, and its parameters with the weights."
    )
    parser.add_argument("function", metavar="FILE.py:FUNCTION")
    parser.add_argument("recording", type=Path, help="a folder, or a name: llama-a1/decode-bf16")
    parser.set_defaults(run=_map)


def _map(options: argparse.Namespace) -> int:
    from .mapping import propose

    model, run = load(options.function)()
    modules, parameters = propose(model, options.recording, run)
    for title, found in (("outputs", modules), ("weights", parameters)):
        print(f"{title}: theirs, recorded, transform, difference")
        for each in found:
            print(f"  {each}")
    return 0
