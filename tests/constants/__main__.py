"""python -m tests.constants: which verdicts change where one constant of the judge is doubled or
halved, and reports/constants.txt, the table of it.

What check() is asked of the corpus (tests.corpus) and of torch's operations is stored once, with
the kernels' outputs, in build/constants; no kernel runs again. Then three judges judge it with each
constant moved that they read: `files`, the one of recordings in C++; `python`, what is measured and
simulated in Python, on a part; `faults`, the harness on the faults of tests/faults and on right
kernels, each of which runs once. Each leaves its figures in build/constants; the table has all that
are there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.constants import remade, sources
from tests.constants.changes import Part, said, table

FOLDER = Path("build/constants")
STORED = FOLDER / "stored"
TABLE = Path("reports/constants.txt")
PARTS = ("files", "python", "faults")
NAMES = {"files": "check()", "python": "check() in Python", "faults": "harness"}


def _ready(options: argparse.Namespace) -> list[sources.Constant]:
    """Builds the library, which judges from here on, and stores what it is asked."""
    constants = sources.built(options.jobs, "plumbline_judge")
    os.environ["PLUMB_JUDGE_LIBRARY"] = str(sources.LIBRARY.resolve())
    if options.again or not STORED.is_dir():
        command = [sys.executable, "-m", "tests.constants.stored", str(STORED)]
        subprocess.run(command, check=True)  # in this process Python's constants are to be moved
        options.again = False
    return constants


def _files(options: argparse.Namespace) -> Part:
    from tests.constants.judged import judged

    constants = _ready(options)
    return judged(sources.LIBRARY, STORED, constants)


def _python(options: argparse.Namespace) -> Part:
    import torch  # noqa: F401  each process is a fork of this one

    _ready(options)

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    return remade.remade(STORED, tuple(options.step), report)


def _faults(options: argparse.Namespace) -> Part:
    constants = sources.built(options.jobs, "moved_native")
    program = sources.BINARY / "bin/moved_native"
    asked = [len(constants), *options.faults, options.right]
    env = {"PLUMB_FIXTURES": "fixtures"} | os.environ
    run = subprocess.run(
        [program, *map(str, asked)], env=env, check=True, capture_output=True, text=True
    )
    out = Part()
    counts: dict[tuple[bool, bool], int] = defaultdict(int)
    for line in run.stdout.splitlines():
        kind, at, factor, name = line.split("\t")
        if at == "-1":
            counts[kind != "right", kind == "fault"] += 1
        else:
            changes = out.of(constants[int(at)], float(factor))
            if kind != "read":
                changes.add(name, wrong=kind == "missed", fails=kind == "alarm")
    out.said = said(counts)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.constants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; none: the table alone")
    parser.add_argument("--again", action="store_true", help="store again what check() is asked")
    parser.add_argument("--jobs", type=int, default=2, help="of the compiler (2)")
    parser.add_argument(
        "--step", type=int, nargs=2, default=(4, 40), metavar="N",
        help="of python: one in N problems of the corpus, one in N operations (4 40)",
    )  # fmt: skip
    parser.add_argument(
        "--faults", type=int, nargs=2, default=(0, 1), metavar="N",
        help="of faults: FIRST and STEP (0 1)",
    )  # fmt: skip
    parser.add_argument(
        "--right", type=int, default=20, help="of faults: right checkpoints of a block (20)"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is called {min(unknown)}; parts are {', '.join(PARTS)}")
    run = {"files": _files, "python": _python, "faults": _faults}
    for name in options.parts:
        run[name](options).save(FOLDER / f"{name}.json")
    found = {NAMES[name]: FOLDER / f"{name}.json" for name in PARTS}
    parts = {name: Part.load(file) for name, file in found.items() if file.is_file()}
    # Of Python's nothing is known where that judge has not run.
    in_python = remade.constants() if NAMES["python"] in parts else []
    TABLE.write_text(table(parts, [*sources.constants(), *in_python]))
    print(TABLE.read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
