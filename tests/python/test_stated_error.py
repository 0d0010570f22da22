"""Whoever judges by a recording refuses one whose stated error is not what its tensors give."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from checked import normal
from numpy_kernels import rms_norm

from python_inspector import check, verify

FIXTURES = Path(__file__).parents[2] / "fixtures"
REFUSED = "reference and delta give"


def tamper(folder: Path, checkpoint: str) -> None:
    """The checkpoint's output is stated to be a little less accurate."""
    path = folder / "recording.json"
    document: dict[str, Any] = json.loads(path.read_text())
    (entry,) = (c for c in document["checkpoints"] if c["id"] == checkpoint)
    (output,) = entry["outputs"].values()
    assert output["error"] > 0
    output["error"] *= 1.01
    path.write_text(json.dumps(document))


def test_of_a_native_block(harness: Path, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "llama-a1", tmp_path / "copy")
    folder = tmp_path / "copy" / "whole-f32"
    tamper(folder, "model.norm#0")
    (verdict,) = verify(rms_norm, folder, r"^model\.norm#0$", arrays="numpy", harness=harness)
    assert verdict.status == "bad_input"
    assert REFUSED in verdict.reason
    first = r"^model\.layers\.0\.input_layernorm#0$"
    (verdict,) = verify(rms_norm, folder, first, arrays="numpy", harness=harness)
    assert verdict.passed


def test_of_a_module(harness: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    check(torch.tanh, like=torch.tanh, inputs=normal(9, 16), keep=kept)
    command = [harness, "judge", kept / "call", kept / "outputs.safetensors"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    tamper(kept / "call", "tanh#0")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert REFUSED in done.stdout
