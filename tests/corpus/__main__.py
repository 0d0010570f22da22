"""python -m tests.corpus: measures the corpus and writes reports/corpus.jsonl.xz, of which
`reports corpus` makes its tables.

Prints a line for each kernel and dtype that check() takes for what it is not, unless the file given
with --against has it, and for a wrong kernel whose error is what rounding may do. Exit code 1 where
there is one.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .measured import Measured

NOT_WRONG = ("pass", "blind")
LEAST = {"f32": 50.0, "bf16": 2.0, "f16": 2.0}
"""An error that is no rounding. Right kernels of float32 differ more among themselves: their own
roundings are what they return, not the one that a 16-bit result has on top."""


def _parts(options: argparse.Namespace) -> Iterator[list[Measured]]:
    from .catalogue import kernels
    from .measured import part  # of a module that a new process imports, which __main__ is not

    first, step = map(int, options.part.split("/"))
    asked = [
        (name, dtype, options.device)
        for name, rows in kernels(options.device).items()
        if options.only in name
        for dtype in rows[0].problem.dtypes
    ][first::step]
    if options.jobs == 1:
        yield from (part(*it) for it in asked)
        return
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        yield from pool.map(part, *zip(*asked, strict=True))


def header(device: str) -> dict[str, object]:
    import torch

    from .gates import GATES

    where = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    gates = {it.name: it.dtypes for it in GATES}
    return {"corpus": 1, "device": where, "torch": torch.__version__, "gates": gates}


def _trouble(it: Measured, known: set[tuple[str, str]]) -> Iterator[str]:
    if it.fault and not it.error >= LEAST[it.dtype]:
        yield f"its error is {it.error} x what rounding may do, at least {LEAST[it.dtype]} wanted"
    if it.fault and it.plain and it.plain not in NOT_WRONG:
        yield f"it is {it.plain} without hard operands: it is no row of a problem that needs them"
    if it.misjudged and (it.kernel, it.dtype) not in known:
        yield f"{it.says} {it.why}".strip()


def _misjudged(file: Path) -> set[tuple[str, str]]:
    from .measured import read

    with lzma.open(file, "rt") as lines:
        measured = [read(line) for line in lines.readlines()[1:]]
    return {(it.kernel, it.dtype) for it in measured if it.misjudged}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("--device", default="cpu", help="of the tensors (cpu)")
    parser.add_argument("--out", type=Path, help="the file to write")
    parser.add_argument("--against", type=Path, help="a file written before")
    parser.add_argument("--only", default="", help="problems whose name has this in it")
    parser.add_argument("--part", default="0/1", help="I/N: every Nth problem, beginning with I")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    known = _misjudged(options.against) if options.against else set()
    lines, troubled, count = [json.dumps(header(options.device))], 0, 0
    for part in _parts(options):
        for it in part:
            count += 1
            lines.append(it.line())
            for words in _trouble(it, known):
                troubled += 1
                print(f"{it.kernel}, {it.dtype}: {words}", flush=True)
    if options.out:
        with lzma.open(options.out, "wt", preset=9) as file:
            file.write("\n".join(lines) + "\n")
    print(f"{count} measured, {troubled} of them not as they should be")
    return int(bool(troubled))


if __name__ == "__main__":
    sys.exit(main())
