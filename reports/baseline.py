"""The accuracy baseline of a device: one short JSON line per checkpoint of a run.

A baseline holds what a later run is compared with, not the whole result: status, hashes, and per
output the error of the tensor, of its worst group of each family and element, and the gain.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reports.json_lines import Line, json_lines

_KEYS = ("recording", "checkpoint", "block", "dtype", "status", "contract", "impl")


def _short(value: object) -> object:
    """Floats to five significant digits; non-finite ones are strings already."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _output(output: dict[str, Any]) -> dict[str, Any]:
    statistics = output["statistics"]
    entry: dict[str, Any] = {
        "E_T": _short(statistics["E_T"]),
        "M_E": _short(statistics["M_E"]),
        "gain": _short(statistics["gain"]),
    }
    entry |= {f["family"]: _short(f["value"]) for f in statistics["families"]}
    if output["conformance"]:
        entry["differing"] = output["conformance"]["differ"]
    return entry


def entries(results: Path) -> tuple[Line, list[Line]]:
    """The run line and the baseline's entries of a results file of `harness --json`.

    Raises ValueError, naming file and line, for what is no such file.
    """
    run: Line = {}
    found = []
    for place, line in json_lines(results):
        try:
            if line["type"] == "run":
                run = line
            elif line["type"] == "checkpoint":
                entry = {key: line[key] for key in _KEYS}
                entry["fused"] = "--no-fuse" not in run["command"].split()
                entry["outputs"] = {o["name"]: _output(o) for o in line["outputs"]}
                entry["bits"] = line["output_sha256"][:16]
                entry["golden"] = line["golden_sha256"][:16]
                found.append(entry)
        except KeyError as error:
            raise ValueError(
                f"{place}: lacks {error}; write it with harness --json FILE"
            ) from error
        except TypeError as error:
            raise ValueError(f"{place}: no result of harness --json: {error}") from error
    if not run or not found:
        what = "run line" if not run else "checkpoint"
        raise ValueError(f"{results}: holds no {what}; write it with harness --json FILE")
    return run, found


def write(results: list[Path], out: Path) -> int:
    """Writes the baseline of several runs on one device; the number of its entries."""
    runs = []
    lines = []
    for path in results:
        run, found = entries(path)
        runs.append({key: run[key] for key in ("command", "version", "environment", "devices")})
        lines += [json.dumps(entry, separators=(",", ":")) for entry in found]
    header = json.dumps({"type": "baseline", "schema": 1, "runs": runs})
    out.write_text("\n".join([header, *sorted(lines)]) + "\n")
    return len(lines)
