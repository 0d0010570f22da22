"""Records tiny models for ci/versions: imports torch and transformers once, which takes longer than
a recording, and forks a process for each, as many at once as there are cores.

usage: python ci/record_tiny.py FOLDER MODELS RUN...

MODELS are words, RUN is words of `inspector record`, the dtype first: "bf16 --chained". A recording
goes to FOLDER/MODEL-DTYPE, what its command printed to FOLDER/MODEL-DTYPE.log, its exit code to
FOLDER/MODEL-DTYPE.code.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from python_inspector.cli.inspector import main
from python_inspector.recorder import session  # noqa: F401  # torch and transformers

WORDS = ("--tokens", "11", "--steps", "3", "--batch", "2", "--left-pad", "3,0")


def begin(folder: Path, model: str, run: list[str]) -> None:
    out = folder / f"{model}-{run[0]}"
    if os.fork():
        return
    log = os.open(f"{out}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    code = 1
    try:
        words = ["record", "--model", f"tiny:{model}", "--dtype", *run, *WORDS]
        code = main([*words, "--out", str(out)])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        Path(f"{out}.code").write_text(f"{code}\n")
        os._exit(0)


def record_all(folder: Path, models: list[str], runs: list[list[str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    running = 0
    for model, run in itertools.product(models, runs):
        if running == os.cpu_count():
            os.wait()
            running -= 1
        begin(folder, model, run)
        running += 1
    for _ in range(running):
        os.wait()


if __name__ == "__main__":
    record_all(Path(sys.argv[1]), sys.argv[2].split(), [run.split() for run in sys.argv[3:]])
