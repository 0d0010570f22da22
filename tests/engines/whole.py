"""Whole models of engines, judged: python -m tests.engines.whole [--engine NAME] [--out FILE].

Error: of all logits, over that of the recorded reference, both against the chained float64 run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import python_inspector
from python_inspector.engines.adapters.engine import Engine

from . import deviations
from .whole_runs import RUNS, folder

ENGINES = ("litgpt", "torchtune", "llama_cpp", "mlx_lm", "keras_hub", "tinygrad", "onnx_runtime")


def load(engine: str) -> tuple[Any, str]:
    """The adapter; nothing, and why, where the engine is absent."""
    try:
        return importlib.import_module(f"python_inspector.engines.adapters.{engine}"), ""
    except (ImportError, OSError, RuntimeError) as error:
        return None, f"{engine}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def built(adapter: Any, recording: Path) -> tuple[Engine | None, str]:
    try:
        return adapter.engine(recording), ""
    except python_inspector.Unsupported as reason:
        return None, str(reason)
    except Exception as error:  # of the engine
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def judged(engine: Engine, way: str, recording: Path) -> dict[str, Any]:
    """One row of the table, without what it is of."""
    try:
        verdict = python_inspector.verify_model(engine.ways[way], recording, rows=engine.rows)
    except python_inspector.Unsupported as reason:
        return {"status": "unsupported", "reason": str(reason)}
    except Exception as error:  # of the engine
        words = " ".join(str(error).split())[:300]
        return {"status": "error", "reason": f"{type(error).__name__}: {words}"}
    chain = verdict.figures["chain"]
    return {
        "status": verdict.status,
        "reason": verdict.reason,
        "error": error_ratio(chain["rows"]) if chain else None,
        "first": chain and chain["first_divergence"],
        "details": verdict.figures["details"],
    }


def error_ratio(rows: Iterable[dict[str, Any]]) -> float:
    """Of the logits of all steps together."""
    heads = [row for row in rows if row["block"] == "lm_head"]
    own = math.hypot(*(float(row["chained"]) for row in heads))
    return own / math.hypot(*(float(row["reference"]) for row in heads))


def measured(engines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for name in engines:
        adapter, reason = load(name)
        if adapter is None:
            print(f"absent: {reason}", file=sys.stderr)
            continue
        for run, dtype in RUNS:
            recording = folder(run, dtype)
            engine, reason = built(adapter, recording)
            of: dict[str, Any] = {"engine": name, "run": run, "dtype": dtype}
            if engine is None:
                yield {**of, "way": "", "status": "unsupported", "reason": reason}
                continue
            of |= {"version": engine.version, "notes": list(engine.notes)}
            for way in engine.ways:
                yield {**of, "way": way, **judged(engine, way, recording)}
        yield from repaired(name)


def repaired(engine: str) -> Iterator[dict[str, Any]]:
    """The same where the engine is known to deviate, with the repair."""
    for deviation in deviations.DEVIATIONS:
        if deviation.engine != engine or deviation.repair is None:
            continue
        for run in deviation.runs:
            for dtype in deviation.dtypes:
                made = deviation.repair(folder(run, dtype))
                for way in deviation.ways:
                    of = {"engine": engine, "run": run, "dtype": dtype, "way": way}
                    found = judged(made, way, folder(run, dtype))
                    yield {**of, "repair": deviation.finding, **found}


def cell(found: dict[str, Any] | None) -> str:
    if found is None or found["status"] == "unsupported":
        return "-"
    if found["status"] == "error":
        return "raises"
    error = found["error"]
    shown = _number(error)
    return shown if found["status"] == "pass" else f"{shown} {found['status'].upper()}"


def table(rows: list[dict[str, Any]]) -> str:
    """A line per engine and run, prefill and cache next to each other, f32 and 16 bits."""
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    found = {(r["engine"], r["run"], r["dtype"], r["way"]): r for r in rows if "repair" not in r}
    titles = [f"{dtype} {way}" for dtype in dtypes for way in ("prefill", "cache")]
    lines = [f"{'engine':13} {'run':13} " + " ".join(f"{title:>13}" for title in titles)]
    for engine in dict.fromkeys(row["engine"] for row in rows):
        for run in dict.fromkeys(row["run"] for row in rows):
            cells = [
                cell(found.get((engine, run, dtype, way)))
                for dtype in dtypes
                for way in ("prefill", "cache")
            ]
            lines.append(f"{engine:13} {run:13} " + " ".join(f"{each:>13}" for each in cells))
    return "\n".join(line.rstrip() for line in lines)


def versions(rows: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(row["version"] for row in rows if "version" in row))


def findings(rows: list[dict[str, Any]]) -> str:
    """A line for each deviation: the errors as the engine is, and where what it lacks is mended."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        place = (row["engine"], row["run"], row["dtype"], row["way"])
        found[("repaired" if "repair" in row else "", *place)] = row
    lines = []
    for each in deviations.DEVIATIONS:
        places = [
            (each.engine, run, dtype, way)
            for run in each.runs for dtype in each.dtypes for way in each.ways
        ]  # fmt: skip
        other = [(each.engine, each.instead or run, *rest) for _, run, *rest in places]
        after = "repaired" if each.repair else ""
        own = _range(found.get(("", *place)) for place in places)
        if not own:
            continue
        words = f"{each.engine:13} {each.finding:27} {', '.join(each.runs):46} {own:15}"
        mended = _range(found.get((after, *place)) for place in other)
        if each.repair or each.instead:
            words += f" {mended} {'repaired' if each.repair else 'on ' + each.instead}"
        lines.append(words.rstrip())
    return "\n".join(lines)


def _range(rows: Iterable[dict[str, Any] | None]) -> str:
    errors = [row["error"] for row in rows if row and row.get("error") is not None]
    if not errors:
        return ""
    return f"{_number(min(errors))} to {_number(max(errors))}"


def _number(error: float) -> str:
    return f"{error:.2f}" if 0.1 <= error < 100 else f"{error:.0e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--rows", type=Path, metavar="FILE", help="saved by --out; judge nothing")
    parser.add_argument("--out", type=Path, metavar="FILE", help="as JSON lines; others are kept")
    parser.add_argument("--findings", action="store_true", help="the known deviations instead")
    parser.add_argument("-v", "--verbose", action="store_true", help="the reason of every failure")
    options = parser.parse_args()
    if options.rows:
        rows = list(map(json.loads, options.rows.read_text().splitlines()))
    else:
        rows = list(measured(options.engine or ENGINES))
    if options.findings:
        print(findings(rows))
        return 0
    print(f"{versions(rows)}\n\n{table(rows)}")
    for row in rows if options.verbose else ():
        if row["status"] != "pass" and "repair" not in row:
            print(f"{row['engine']} {row['run']} {row['dtype']} {row['way']}: {row['reason']}")
            print("    " + "; ".join(row.get("details", ())))
    if options.out:
        kept = options.out.read_text().splitlines() if options.out.is_file() else []
        new = {row["engine"] for row in rows}
        others = [line for line in kept if json.loads(line)["engine"] not in new]
        options.out.write_text("".join(f"{line}\n" for line in [*others, *map(json.dumps, rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
