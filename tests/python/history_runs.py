"""Small synthetic runs of the harness, for tests of the history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sample_results

OCTAVES = [40, 20, 30, 40, 50, 20, 0] + [0] * 19
RUN = sample_results.run_line(devices=["cpu: a CPU, avx2"])
SUMMARY = sample_results.summary_line([])


def output(error: float | str = 1e-3, **changes: Any) -> dict[str, Any]:
    """One output of a checkpoint's line; `families`, `gain`, `octaves` can be given."""
    line = sample_results.output("bf16", 1e-3)
    families = changes.get("families", {"token": error, "channel": error})
    bits = changes.get("conformance")
    return line | {
        "name": changes.get("name", "out"),
        "statistics": {
            "E_T": error, "M_E": 4e-3, "M_E_at": 3, "gain": changes.get("gain", 1e-6),
            "families": [{"family": n, "value": v} for n, v in families.items()],
        },
        "informative": line["informative"] | {"octaves": changes.get("octaves", OCTAVES)},
        "conformance": bits and {"n": 64, "limit": 8, **bits},
    }  # fmt: skip


def checkpoint(name: str = "norm#0", *outputs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A checkpoint's line; `error` is short for one output with it."""
    error = changes.pop("error", 1e-3)
    return sample_results.checkpoint(1, block="rms_norm", dtype="bf16") | {
        "checkpoint": name, "recording": "llama/whole", "contract": "bf16 acc24 eager",
        "outputs": list(outputs) or [output(error)], "output_sha256": "a" * 64, **changes,
    }  # fmt: skip


def write(path: Path, *checkpoints: dict[str, Any], **run: Any) -> Path:
    """A results file."""
    lines = [RUN | run, *checkpoints, SUMMARY]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
