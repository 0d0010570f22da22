"""Checks that a recording is chained as a whole or not at all; see `recorder/chain.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .recording import MAIN_INPUTS, chained_outputs


def chain_findings(checkpoints: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Chained oracles and amplifications that stand where none belongs, or are missing."""
    chained = next((c["id"] for c in checkpoints if _carried(c)), None)
    for index, checkpoint in enumerate(checkpoints):
        where = f"checkpoints[{index}] {checkpoint['id']}"
        names = set(chained_outputs(checkpoint["block"], checkpoint["path"]))
        carried = _carried(checkpoint)
        for name in sorted(carried - names):
            yield (
                f"{where}: outputs.{name}.chained_delta: a {checkpoint['block']} at "
                f"{checkpoint['path']} has it for {', '.join(sorted(names)) or 'no output'}"
            )
        for name in sorted(carried):
            if "rows" in checkpoint["outputs"][name]:
                yield f"{where}: outputs.{name}.rows: stands beside chained_delta"
        if chained is not None:
            for name in sorted((names & checkpoint["outputs"].keys()) - carried):
                yield (
                    f"{where}: outputs.{name}: no chained_delta, but {chained} has one: record "
                    "all of the run with chained, or none"
                )
        if "amplification" in checkpoint and not (
            checkpoint["block"] in MAIN_INPUTS and "out" in carried
        ):
            yield (
                f"{where}: amplification: stands beside a chained out of "
                f"{', '.join(MAIN_INPUTS)} only"
            )


def _carried(checkpoint: Mapping[str, Any]) -> set[str]:
    """The outputs that have a chained oracle."""
    return {name for name, output in checkpoint["outputs"].items() if "chained_delta" in output}
