"""reports support: what the baselines say of models and devices, and nothing of what never ran."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def _lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _result(recording: str, checkpoint: str, status: str) -> dict[str, str]:
    return {"recording": recording, "checkpoint": checkpoint, "dtype": "f32", "status": status}


def test_a_row_per_model_and_a_column_per_device(tmp_path: Path) -> None:
    for name, kind in (("a/x", "llama"), ("b/x", "qwen2"), ("c/x", "blocks")):
        recording = {"name": name, "provenance": {"model_type": kind}}
        _lines(tmp_path / "fixtures" / name / "recording.json", [recording])
    first = {
        "type": "baseline",
        "device": "gpu:0",
        "runs": [{"devices": ["gpu:0: some GPU, 8 cores"]}],
    }
    results = [
        _result("a/x", "norm#0", "pass"),
        _result("a/x", "norm#0", "fail"),  # the same, once more: without fusion
        _result("a/x", "norm#1", "pass"),
        _result("c/x", "norm#0", "blind"),
    ]
    _lines(tmp_path / "baselines" / "gpu.jsonl", [first, *results])
    bench = {"type": "model_bench", "status": "pass", "device": "gpu:0", "model": "llama3-8b"}
    _lines(tmp_path / "baselines" / "speed.jsonl", [{"type": "run"}, bench])
    (tmp_path / "baselines" / "empty.jsonl").touch()

    done = subprocess.run(
        [sys.executable, "-m", "reports", "support", "--fixtures", tmp_path / "fixtures",
         "--baselines", tmp_path / "baselines"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip

    rows = [line.split("  ") for line in done.stdout.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[:5] == [
        ["gpu:0", "hip"],
        ["some GPU", "compiles"],
        ["llama", "1 fail, 1 pass", "never run"],
        ["qwen2", "not run", "never run"],
        ["single blocks", "1 blind", "never run"],
    ]
    assert "speed kept for gpu:0: llama3-8b" in done.stdout
