"""How far the reference is from the rounded model: `python -m python_inspector.trace.conforms`.

For each kind of block and dtype of the recordings: elements of r that differ from m, and outputs
where they are more than simulated kernels forecast. Of these r itself does not conform: no
kernel is held to its bits.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..aliases import PACKAGE
from ..format.strict_json import load_json
from ..format.validate import RECORDING, find_recordings

LEAST = 8
"""Differing bits that do not count."""


@dataclass
class Row:
    """One 16-bit output of a recording."""

    recording: str
    checkpoint: str
    output: str
    block: str
    dtype: str
    elements: int
    differ: int
    forecast: float

    @property
    def beyond(self) -> bool:
        return self.differ > self.forecast


def rows(folder: Path) -> Iterator[Row]:
    """The outputs of a recording that have a rounded model."""
    recording = load_json(folder / RECORDING)
    table = recording["tensors"]
    for checkpoint in recording["checkpoints"]:
        for name, output in checkpoint["outputs"].items():
            if "model" not in output:
                continue
            entry, model = table[output["tensor"]], output["model"]
            yield Row(
                recording["name"],
                checkpoint["id"],
                name,
                checkpoint["block"],
                entry["dtype"],
                math.prod(entry["shape"]),
                0 if model is None else table[model["at"]]["shape"][0],
                3 * output["spread"]["bits"][2] + LEAST,
            )


def report(found: Sequence[Row]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in found:
        groups[row.block, row.dtype].append(row)
    yield f"{'block':20} {'dtype':5} {'outputs':>7} {'elements':>9} {'differ':>8} {'beyond':>6}"
    for (block, dtype), members in sorted(groups.items()):
        elements, differ = sum(r.elements for r in members), sum(r.differ for r in members)
        beyond = sum(r.beyond for r in members)
        share = differ / elements if elements else 0.0
        yield f"{block:20} {dtype:5} {len(members):7} {elements:9} {share:8.3%} {beyond:6}"
    for row in found:
        if row.beyond:
            yield (
                f"{row.recording} {row.checkpoint} {row.output} ({row.block}, {row.dtype}): "
                f"{row.differ} of {row.elements} differ, forecast {row.forecast:.0f}"
            )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"{PACKAGE}.trace.conforms", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="*", default=[Path("fixtures")])
    found = [
        row
        for folder in parser.parse_args(words).folder
        for path in find_recordings(folder)
        for row in rows(path)
    ]
    print("\n".join(report(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
