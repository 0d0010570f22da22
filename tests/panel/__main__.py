"""ci/panel: fresh random models through recorder and judge; whatever fails is a false alarm."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.panel.table import as_json, lines_of, summary, text_of
from tests.panel.trial import Panel, Trial, prepare, run_trial

ROOT = Path(__file__).resolve().parents[2]
FAILED, USAGE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    devices, keep = tuple(options.device), options.keep.resolve()
    panel = Panel(options.seed, options.harness, devices, keep, options.rows, options.record_on)
    indices = options.only or range(options.first, options.first + options.count)
    start = time.monotonic()
    trials = _run(panel, indices, options)
    figures = summary(trials)
    print(text_of(figures))
    print(f"{len(trials)} draws of seed {options.seed} in {time.monotonic() - start:.0f} s")
    if options.json:
        text = json.dumps(as_json(trials, figures, options.seed), indent=1)
        options.json.write_text(text + "\n")
    if not figures["recordings"]["of"]:
        print("panel: nothing was recorded", file=sys.stderr)
        return USAGE
    alarms = figures["recordings"]["alarms"] or figures["chains"]["alarms"]
    return FAILED if alarms or figures["edits"]["survived"] else 0


def _run(panel: Panel, indices: Sequence[int], options: argparse.Namespace) -> list[Trial]:
    """In order of index; what failed is printed as it comes."""
    trials = []
    given = [w for device in options.device for w in ("--device", device)]
    options_again = given if options.device != _DEVICES else []
    options_again += [] if options.rows is None else ["--rows", str(options.rows)]
    options_again += [] if options.record_on == "cpu" else ["--record-on", options.record_on]
    for trial in _trials(panel, indices, options.jobs):
        trials.append(trial)
        for line in lines_of(trial, panel.seed, options_again):
            print(line, flush=True)
    return sorted(trials, key=lambda trial: trial.index)


def _trials(panel: Panel, indices: Sequence[int], jobs: int) -> Iterator[Trial]:
    """As they end."""
    if jobs == 1:
        prepare()
        yield from (run_trial(panel, index) for index in indices)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=prepare) as pool:
        for done in as_completed([pool.submit(run_trial, panel, i) for i in indices]):
            yield done.result()


_DEVICES = ["cpu", "emu"]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ci/panel",
        description="Draws random tiny models, records them and verifies each on every device, "
        "fused and composed, alone and chained. All code is correct: what fails is a false alarm, "
        "and the exit code 1. With --rows it is recordings of some tokens that are judged.",
    )
    parser.add_argument("--count", type=_positive, default=40, metavar="N", help="recordings (40)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the draws (1)")
    parser.add_argument("--first", type=int, default=0, metavar="I", help="index to start at (0)")
    parser.add_argument("--only", type=int, nargs="+", metavar="I", help="these indices alone")
    parser.add_argument(
        "--device",
        action="append",
        metavar="D",
        help="may be given again; default: cpu and emu (emu:32 or emu:64, as is drawn)",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        default=ROOT / "build/panel",
        metavar="DIR",
        help="where recordings are made; those that failed stay there (build/panel)",
    )
    parser.add_argument(
        "--rows",
        type=_positive,
        metavar="N",
        help="record N tokens of a call (`inspector record --rows`, not chained); then every "
        "recording's params are also edited, and an edit that no verdict notices is a failure",
    )
    parser.add_argument(
        "--record-on",
        default="cpu",
        metavar="cuda:0",
        help="where models run and are recorded (cpu); recordings of a GPU go other ways there",
    )
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count(), help="processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all of it, as JSON")
    parser.add_argument("--harness", type=Path, default=ROOT / "build/cpu/bin/harness")
    options = parser.parse_args(arguments)
    options.device = options.device or _DEVICES
    if options.rows == 1:
        parser.error("--rows 1, expected at least 2: the first and the last token")
    if not options.harness.is_file():
        parser.error(f"--harness {options.harness}: there is none; ci/verify builds it")
    return options


def _positive(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}, expected at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
