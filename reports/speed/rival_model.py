"""Measures whole models, alternating `harness bench --model` and transformers, on one checkpoint.

Both run the same folder of random weights, prompt after prompt, round after round, so that what
else the machine does meets both alike. Figures are medians over the steps of a round; a ratio is
the median over the rounds of theirs over ours. Transformers works in a process of its own: a way
that takes too long to compile is ended and leaves its reason, next to what was measured before.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..beside import PACKAGE
from ..json_lines import Line
from .work import Speed, Work
from .worker import Worker

CONFIGS = resources.files(PACKAGE) / "data" / "configs"
PUBLISHED = {
    "llama3-8b": "Meta-Llama-3-8B",
    "llama3.2-1b": "Llama-3.2-1B",
    "gemma2-2b": "gemma-2-2b",
    "zamba2-1.2b": "Zamba2-1.2B",
}


WAYS = ("eager", "compile")


@dataclass(frozen=True)
class Plan:
    """What is measured, by which ways of transformers, how often, and for how long at most."""

    work: Work
    ways: tuple[str, ...] = WAYS[:1]
    rounds: int = 3
    timeout: float = 0  # seconds in all; 0: any time


class Deadline:
    """When everything must be done."""

    def __init__(self, seconds: float) -> None:
        """From now on; 0: never."""
        self.end = time.monotonic() + (seconds or math.inf)

    def left(self) -> float | None:
        """Seconds, None for any. TimeoutError when there are none."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return None if left == math.inf else left


def transformers_model(config: dict[str, Any], work: Work) -> object:
    """The rival, made in the process that runs it: only there torch is needed."""
    from .transformers_model import TransformersModel

    return TransformersModel(config, work)


def published_config(shape: str) -> dict[str, Any]:
    """The published configuration of a shape's model."""
    config: dict[str, Any] = json.loads((CONFIGS / f"{PUBLISHED[shape]}.json").read_text())
    return config


def measure_harness(harness: Path, folder: Path, work: Work, seconds: float | None) -> Speed:
    """The same by `harness bench --model`. TimeoutError; ValueError where it gives no figures."""
    report = folder / "bench.jsonl"
    try:
        done = subprocess.run(
            [
                str(harness), "bench", "--model", str(folder), "--device", work.device,
                "--dtype", work.dtype, "--tokens", str(work.tokens), "--steps", str(work.steps),
                "--threads", str(work.threads), "--json", str(report),
            ],
            capture_output=True, text=True, check=False, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    if done.returncode != 0:
        raise ValueError(f"{harness} bench: {done.stdout}{done.stderr}")
    line = json.loads(report.read_text().splitlines()[-1])
    return Speed(line["prefill_s"], 1e-6 * line["decode_us"])


def measure_way(
    way: str, rival: Worker, harness: Path, folder: Path, plan: Plan, deadline: Deadline
) -> Line:
    """A way's rounds; what ended them early is its gap. ValueError where ours gives no figures."""
    pairs: list[tuple[Speed, Speed]] = []
    gap = None
    try:
        rival.call("save", folder, seconds=deadline.left())
        rival.call("measure", way, seconds=deadline.left())  # compiles, allocates
        while len(pairs) < plan.rounds:
            ours = measure_harness(harness, folder, plan.work, deadline.left())
            pairs.append((ours, rival.call("measure", way, seconds=deadline.left())))
    except TimeoutError:
        gap = f"not done within {plan.timeout:g} s"
    except RuntimeError as error:
        gap = str(error)
    return {
        "way": way,
        "ours": [asdict(ours) for ours, _ in pairs],
        "theirs": [asdict(theirs) for _, theirs in pairs],
        "prefill_ratio": ratio(pairs, lambda speed: speed.prefill),
        "decode_ratio": ratio(pairs, lambda speed: speed.decode),
        "gap": gap,
    }


def ratio(pairs: list[tuple[Speed, Speed]], of: Callable[[Speed], float]) -> float | None:
    """Theirs over ours, the median over pairs: above 1 ours is faster. None without pairs."""
    return statistics.median(of(theirs) / of(ours) for ours, theirs in pairs) if pairs else None


def compare(name: str, config: dict[str, Any], harness: Path, plan: Plan) -> list[Line]:
    """A line for each way, all rounds included."""
    deadline, work = Deadline(plan.timeout), plan.work
    run = {
        "type": "rival_model",
        "model": name,
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **asdict(work),
        **{package: version(package) for package in ("torch", "transformers")},
    }
    with TemporaryDirectory() as place, Worker(transformers_model, config, work) as rival:
        return [
            run | measure_way(way, rival, harness, Path(place), plan, deadline) for way in plan.ways
        ]


def summary(lines: list[Line]) -> str:
    """For a terminal; its last row has the best rival's ratios, and what is missing."""
    first = lines[0]
    rows = [f"{first['model']}, {first['dtype']}, {first['device']}: tokens/s, ours and theirs"]
    for line in lines:
        for ours, theirs in zip(line["ours"], line["theirs"], strict=True):
            prefill = [line["tokens"] / speed["prefill"] for speed in (ours, theirs)]
            decode = [1 / speed["decode"] for speed in (ours, theirs)]
            rows.append(
                f"{line['way']:8} prefill {prefill[0]:8.1f} {prefill[1]:8.1f}   "
                f"decode {decode[0]:8.2f} {decode[1]:8.2f}"
            )
    measured = [line for line in lines if line["theirs"]]
    last = [best_ratio(measured, figure) for figure in ("prefill", "decode")] if measured else []
    last += [f"gap: {line['way']}: {line['gap']}" for line in lines if line["gap"]]
    return "\n".join([*rows, f"ratio   {'   '.join(last)}"]) + "\n"


def best_ratio(lines: list[Line], figure: str) -> str:
    """Such as `decode 1.65 (compile)`: of the way that comes closest to ours."""
    best = min(lines, key=lambda line: float(line[f"{figure}_ratio"]))
    return f"{figure} {best[f'{figure}_ratio']:.2f} ({best['way']})"
