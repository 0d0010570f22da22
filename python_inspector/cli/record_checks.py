"""Options of `inspector record` that do not go together."""

from __future__ import annotations

import argparse

from ..errors import UsageError
from ..format.contract_words import RECORDED, asked


def check_options(options: argparse.Namespace) -> None:
    """UsageError for what can be refused before a model is loaded."""
    _check_rows(options)
    _check_shared(options)


def _check_rows(options: argparse.Namespace) -> None:
    rows = options.prompt or options.token_ids
    if rows and options.batch not in (None, len(rows)):
        raise UsageError(
            f"--batch {options.batch}, but {len(rows)} rows are given by "
            f"{'--prompt' if options.prompt else '--token-ids'}"
        )
    if options.chained and options.effort == "none":
        raise UsageError("--chained needs every block's oracle: drop --effort none")
    if options.loss and not options.backward:
        raise UsageError(f"--loss {options.loss} goes with --backward: gradients come of it")
    if options.backward and options.effort == "none":
        raise UsageError("--backward needs every block's oracle: drop --effort none")
    if options.contract and asked(options.contract, RECORDED).inside:
        _check_contract(options)
    if options.chained and options.rows:
        raise UsageError("--chained needs every token of every layer: drop --rows")
    if options.whole_layers and not options.rows:
        raise UsageError("--whole-layers goes with --rows: without it every layer is whole")
    if rows and options.left_pad:
        raise UsageError("--left-pad goes with --tokens; rows of different lengths are padded")
    if options.max_length is not None and options.cache != "static":
        raise UsageError(f"--max-length {options.max_length} goes with --cache static")
    least_of = {
        "batch": 1,
        "tokens": 1,
        "max_length": 1,
        "steps": 0,
        "logits_to_keep": 0,
        "rows": 2,
        "jobs": 1,
    }
    for name, least in least_of.items():
        value = getattr(options, name)
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} {value}, expected at least {least}")


def _check_contract(options: argparse.Namespace) -> None:
    """What happens inside is what simulated kernels do."""
    if options.effort == "none":
        raise UsageError(
            f"--contract {options.contract} is what simulated kernels do: drop --effort none"
        )


def _check_shared(options: argparse.Namespace) -> None:
    """Where the run is recorded in parts, or not all of it."""
    if options.chained and options.calls is not None:
        raise UsageError("--chained goes from call to call: drop --calls")
    if options.jobs is not None and options.weights is not None:
        raise UsageError("--weights names a file next to one recording: drop --jobs")
    if (options.jobs or 1) > 1 and options.device_map:
        raise UsageError("--device-map takes one process: drop --jobs")
