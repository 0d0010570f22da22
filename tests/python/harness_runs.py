"""Runs of the built harness, for tests of its command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN_SAMPLES = ROOT / "tests" / "plugin"


@dataclass(frozen=True)
class Run:
    """What one run printed, and the results it wrote."""

    code: int
    stdout: str
    stderr: str
    results: list[dict[str, Any]]


def harness() -> str:
    built = ROOT / "build" / "cpu" / "bin" / "harness"
    found = str(built) if built.is_file() else shutil.which("harness")
    if not found:
        pytest.skip("the harness is not built")
    return found


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a subcommand, which must end within a minute or two."""
    return subprocess.run(
        [harness(), *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


# The emulated GPU that checks every access is slow: ci/nightly runs these.
CHECKED = [
    pytest.param(device, marks=pytest.mark.nightly) for device in ("emu-check:32", "emu-check:64")
]


def need_device(device: str) -> None:
    if not re.search(rf"^{device} +usable", command("devices").stdout, re.MULTILINE):
        pytest.skip(f"this build of the harness has no {device}")


def verify(tmp_path: Path, *options: str) -> Run:
    """Runs the default command; an option can be anything but --json."""
    results = tmp_path / "results.jsonl"
    command = [harness(), "--json", str(results), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = results.read_text().splitlines() if results.is_file() else []
    records = [json.loads(line) for line in lines]
    checkpoints = [record for record in records if record["type"] == "checkpoint"]
    return Run(done.returncode, done.stdout, done.stderr, checkpoints)
