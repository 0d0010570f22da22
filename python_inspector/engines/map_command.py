"""inspector map: proposes which module and weight of an engine is which recorded one."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from ..errors import UsageError


def add_map(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "FILE.py:FUNCTION returns a torch model and a function that runs it on ids; prints its "
        "modules beside the recorded outputs that they give, and its parameters beside weights."
    )
    parser.add_argument("function", metavar="FILE.py:FUNCTION")
    parser.add_argument("recording", type=Path, help="a folder, or a name: llama-a1/decode-bf16")
    parser.set_defaults(run=_map)


def _map(options: argparse.Namespace) -> int:
    from .mapping import propose

    model, run = _loaded(options.function)()
    modules, parameters = propose(model, options.recording, run)
    for title, found in (("outputs", modules), ("weights", parameters)):
        print(f"{title}: theirs, recorded, transform, difference")
        for each in found:
            print(f"  {each}")
    return 0


def _loaded(named: str) -> Any:
    file, _, function = named.rpartition(":")
    spec = importlib.util.spec_from_file_location("mapped", file) if file else None
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise UsageError(f"{named}: expected FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise UsageError(f"{file} has no function {function}")
    return getattr(module, function)
