"""Small synthetic runs of the harness, for tests of the history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OCTAVES = [40, 20, 30, 40, 50, 20, 0] + [0] * 19
RUN = {
    "type": "run", "schema": 1, "version": "0.1.0", "command": "harness --device cpu",
    "started": "2026-01-01T00:00:00Z", "environment": {"compiler": "12.2.0"},
    "devices": ["cpu: a CPU, avx2"],
}  # fmt: skip
SUMMARY = {"type": "summary", "interrupted": ""}


def output(error: float | str = 1e-3, **changes: Any) -> dict[str, Any]:
    """One output of a checkpoint's line; `families`, `gain`, `octaves` can be given."""
    families = changes.get("families", {"token": error, "channel": error})
    return {
        "name": changes.get("name", "out"),
        "gates": [{"name": "tensor", "statistic": error, "limit": 0.01}],
        "statistics": {
            "E_T": error, "M_E": 4e-3, "M_E_at": 3, "gain": changes.get("gain", 1e-6),
            "families": [{"family": n, "value": v} for n, v in families.items()],
        },
        "informative": {
            "values": {"max_abs": {"value": 0.5, "at": 1}},
            "octaves": changes.get("octaves", OCTAVES),
            "ulps": [190, 10],
            "worst_groups": [{"family": "token", "group": "token 3", "value": error}],
        },
        "conformance": changes.get("conformance"),
    }  # fmt: skip


def checkpoint(name: str = "norm#0", *outputs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A checkpoint's line; `error` is short for one output with it."""
    error = changes.pop("error", 1e-3)
    line = {
        "type": "checkpoint", "status": "pass", "block": "rms_norm", "checkpoint": name,
        "recording": "llama/whole", "device": "cpu", "dtype": "bf16",
        "contract": "bf16 acc24 eager", "impl": ["rms_norm/avx2"],
        "outputs": list(outputs) or [output(error)], "blind_to": [],
        "output_sha256": "a" * 64, "golden_sha256": "b" * 64,
    }  # fmt: skip
    return line | changes


def write(path: Path, *checkpoints: dict[str, Any], **run: Any) -> Path:
    """A results file."""
    lines = [RUN | run, *checkpoints, SUMMARY]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
