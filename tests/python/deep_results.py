"""Results of a deep model, made of real ones: the layers and calls of a recorded tiny model again.

    python tests/python/deep_results.py results.jsonl deep.jsonl --checkpoints 100000

Statistics vary from checkpoint to checkpoint and grow with depth; some layers fail.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sample_results import run_line, summary_line

Line = dict[str, Any]
LAYER = re.compile(r"model\.layers\.(\d+)(\D.*)#(\d+)")
SOURCES = ("llama-a1/decode-bf16", "gemma2-a4/decode-bf16")
MODEL = "deep-70b/decode-bf16"
WRONG_LAYERS = (17, 41)  # of the layers, what some checkpoints of one kind fail in


def templates(path: Path, sources: Sequence[str] = SOURCES) -> list[tuple[str, str]]:
    """One checkpoint of each path inside a layer: what follows the layer's number, and the line."""
    found: dict[str, str] = {}
    with path.open(encoding="utf-8") as file:
        for text in file:
            if '"type":"checkpoint"' in text.replace(" ", "")[:40]:
                line = json.loads(text)
                match = LAYER.fullmatch(line["checkpoint"])
                if match and line["recording"] in sources and line["status"] == "pass":
                    found.setdefault(match[2], text)
    if not found:
        raise ValueError(f"{path}: has no checkpoints in layers of {', '.join(sources)}")
    return sorted(found.items())


def _varied(line: Line, chance: random.Random, factor: float, wrong: bool) -> None:
    """Other errors, within the limits unless the kernel is wrong."""
    for output in line["outputs"]:
        scale = factor * chance.lognormvariate(0, 0.2)
        output["statistics"]["E_T"] *= scale
        output["recorded_error"] *= chance.lognormvariate(0, 0.05)
        for gate in output["gates"]:
            if gate["limit"] == 0 or isinstance(gate["statistic"], str):
                continue
            gate["statistic"] = min(gate["statistic"] * scale, 0.97 * gate["limit"])
            if wrong:
                gate["statistic"] = gate["limit"] * chance.uniform(2, 40)
                gate["passed"] = False
        if wrong:
            output["status"] = "fail"
            output["where"] = _where(chance)
    if wrong:
        line["status"], line["reason"] = "fail", "tensor error beyond its limit"


def _where(chance: random.Random) -> Line:
    tokens, channels = 128, 512
    bad = chance.randrange(0, channels - 64)
    token = [chance.random() ** 4 for _ in range(tokens)]
    channel = [chance.random() if bad <= i < bad + 64 else 0.0 for i in range(channels)]
    return {
        "region": f"channel {bad}..{bad + 63}", "share": 0.99, "worst": "token 5 (12x the limit)",
        "maps": [{"name": "token", "energy": token}, {"name": "channel", "energy": channel}],
        "picture": _picture(tokens, channels, range(bad, bad + 64), chance),
    }  # fmt: skip


def _picture(rows: int, columns: int, wrong: range, chance: random.Random) -> Line:
    cells = [
        "".join(chance.choice("bcdef") if 8 * i in wrong else "0" for i in range(columns // 8))
        for _ in range(rows // 4)
    ]
    return {"row_axes": "token", "column_axes": "channel", "rows": rows, "columns": columns,
            "cells": cells}  # fmt: skip


def deep(
    found: Sequence[tuple[str, str]], count: int, layers: int, seed: int = 1
) -> Iterator[Line]:
    """`count` checkpoints of a model with that many layers, call after call."""
    chance = random.Random(seed)
    for number in range(count):
        call, rest = divmod(number, layers * len(found))
        layer, place = divmod(rest, len(found))
        path, text = found[place]
        line: Line = json.loads(text)
        name = f"model.layers.{layer}{path}#{call}"
        line["again"] = line["again"].replace(line["recording"], MODEL)
        line["again"] = line["again"].replace(line["checkpoint"], name)
        line |= {
            "checkpoint": name, "recording": MODEL, "fixture": f"fixtures/{MODEL}", "step": call,
            "output_sha256": f"{number:064x}", "seconds": round(line["seconds"], 6),
            "golden_sha256": "b" * 64,
        }  # fmt: skip
        wrong = layer in WRONG_LAYERS and "sdpa" in path and chance.random() < 0.5
        _varied(line, chance, 1 + layer / layers, wrong)
        yield line


def write(path: Path, lines: Iterator[Line], run: Line) -> int:
    """A result file, line by line; how many checkpoints it has."""
    statuses = []
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(run, separators=(",", ":")) + "\n")
        for line in lines:
            statuses.append({"status": line["status"]})
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
        file.write(json.dumps(summary_line(statuses), separators=(",", ":")) + "\n")
    return len(statuses)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="of harness --json on the project's recordings")
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoints", type=int, default=100_000)
    parser.add_argument("--layers", type=int, default=80)
    options = parser.parse_args()
    lines = deep(templates(options.results), options.checkpoints, options.layers)
    print(f"{options.out}: {write(options.out, lines, run_line())} checkpoints")


if __name__ == "__main__":
    main()
