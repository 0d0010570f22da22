"""`inspector attribute`: which quantised weights cost how much of a model's error."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any


def add_attribute(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=attribute)
    parser.description = (
        "Runs the original model in float64 with one quantised weight in it at a time, and says "
        "how far its logits are off. What kernels add is not in it."
    )
    parser.add_argument("--model", required=True, help="the quantised one: a folder, or a hub id")
    parser.add_argument("--original", required=True, help="as it was: a folder, hub id, tiny:NAME")
    ids = parser.add_mutually_exclusive_group()
    ids.add_argument("--prompt", action="append", metavar="TEXT", help="a row; may be repeated")
    ids.add_argument("--tokens", type=int, default=32, metavar="N", help="N random ids (32)")
    parser.add_argument("--seed", type=int, default=1, help="of random ids")
    parser.add_argument("--device", metavar="cuda:0", help="where it runs (default: cpu)")
    parser.add_argument("--json", action="store_true", help="one object for programs")


def attribute(options: argparse.Namespace) -> int:
    from ..api.attribution import attribute
    from ..cases import run
    from ..errors import UsageError
    from ..models.inputs import random_ids
    from .record import quiet_transformers

    quiet_transformers()
    if options.tokens < 1:
        raise UsageError(f"--tokens {options.tokens}, expected at least 1")
    quantised, original = (
        run.Source(name, device=options.device) for name in (options.model, options.original)
    )
    models: tuple[Any, Any] = (run.load_model(quantised), run.load_model(original))
    if options.prompt:
        ids, _ = run.stack_rows(run.tokenize(original, options.prompt))
    else:
        vocab = models[1].config.get_text_config().vocab_size
        ids = random_ids(1, options.tokens, vocab, seed=options.seed)
    ids = ids.to(next(models[1].parameters()).device)
    found = attribute(*models, ids, use_cache=False)
    if options.json:
        costs = [dataclasses.asdict(it) | {"share": found.share(it)} for it in found.costs]
        print(json.dumps({"together": found.together, "costs": costs}))
    else:
        print(found)
    return 0
