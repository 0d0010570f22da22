"""Alternates `harness bench` and `reports rivals`: on a shared machine only ratios hold."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..beside import PACKAGE
from ..json_lines import Line, json_lines
from .shapes import Sizes


@dataclass(frozen=True)
class Turn:
    """The lines of one run of each, one after the other."""

    ours: list[Line]
    theirs: list[Line]


@dataclass(frozen=True)
class Ratio:
    """How many times as long PyTorch's best way takes; `rounds` from the smallest on."""

    case: str
    way: str
    rounds: list[float]

    @property
    def middle(self) -> float:
        """Of all rounds."""
        return statistics.median(self.rounds)


def take_turn(
    harness: Path, shape: str, sizes: Sizes, block: str, seconds: float, threads: int
) -> Turn:
    """One round. ValueError where one of them gives no figures."""
    same = [
        "--shape", shape, "--tokens", str(sizes.tokens), "--context", str(sizes.context),
        "--dtype", sizes.dtype, "--device", sizes.device, "--block", block,
        "--seconds", str(seconds), "--threads", str(threads),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "bench.jsonl"), Path(folder, "rivals.jsonl")
        _run([str(harness), "bench", *same, "--json", str(ours)])
        _run([sys.executable, "-m", PACKAGE, "rivals", *same, "--quick", "--out", str(theirs)])
        return Turn(
            [line for _, line in json_lines(ours)], [line for _, line in json_lines(theirs)]
        )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def ratios(turns: Iterable[Turn]) -> list[Ratio]:
    """Of every case that both have measured in every round, PyTorch's fastest first.

    The fastest decile of each: what another process takes away shows in slower ones.
    """
    rounds = [_of_one(turn) for turn in turns]
    shared = set.intersection(*(set(one) for one in rounds)) if rounds else set()
    out = []
    for case in shared:
        way = min((one[case] for one in rounds), key=lambda pair: pair[0])[1]
        out.append(Ratio(case, way, sorted(one[case][0] for one in rounds)))
    return sorted(out, key=lambda ratio: ratio.middle)


def _of_one(turn: Turn) -> dict[str, tuple[float, str]]:
    best: dict[str, tuple[float, str]] = {}
    for line in turn.theirs:
        if line.get("type") == "rival" and line["p10_us"] is not None:
            this = (line["p10_us"], line["way"])
            best[line["case"]] = min(best.get(line["case"], this), this)
    return {
        line["case"]: (best[line["case"]][0] / line["p10_us"], best[line["case"]][1])
        for line in turn.ours
        if line.get("type") == "bench" and line["status"] == "pass" and line["case"] in best
    }


def summary(title: str, found: list[Ratio]) -> list[str]:
    """How many cases are ahead, and those that are not or hardly, a line each."""
    behind = [ratio for ratio in found if ratio.middle < 1]
    lines = [f"{title}: ahead in {len(found) - len(behind)} of {len(found)} cases"]
    if found:
        lines[0] += f", in the median case {statistics.median(r.middle for r in found):.2f}x"
    for ratio in behind:
        spread = f"{ratio.rounds[0]:.2f} to {ratio.rounds[-1]:.2f}"
        lines.append(f"  {ratio.case:18} {ratio.middle:5.2f}x  ({spread})  of {ratio.way}")
    return lines


def origin(turn: Turn) -> list[str]:
    """What the figures are of."""
    heads = [line for line in (*turn.ours, *turn.theirs) if line["type"] in ("run", "rival_run")]
    return [
        *(words for line in heads for words in line.get("devices", ())),
        *(f"PyTorch {line['torch']}" for line in heads if "torch" in line),
    ]
