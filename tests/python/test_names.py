"""Names that tables print work wherever a recording is asked for; wrong ones get the nearest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from harness_runs import command
from safetensors.torch import save_file

NAME = "llama-a1/decode-bf16"


@pytest.mark.parametrize(
    "words",
    [
        ("show", NAME),
        ("list", "--fixture", NAME),
        ("--fixture", NAME, "--block", "rms_norm", "--device", "cpu"),
        ("export", NAME, "OUT", "--checkpoint", "model.norm#0"),
    ],
)
def test_a_name_is_as_good_as_a_folder(words: tuple[str, ...], tmp_path: Path) -> None:
    done = command(*(str(tmp_path / "out") if word == "OUT" else word for word in words))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--fixture", "llama-a1/decode-bf61"), f"did you mean {NAME}?"),
        (("show", "lama-a1/decode-bf16"), f"did you mean {NAME}?"),
        (("--fixture", NAME, "--block", "rmsnorm"), "did you mean rms_norm?"),
        (("--fixture", NAME, "--suite", "component"), "did you mean components?"),
        (("show", NAME, "--checkpoint", "model.norn#0"), "did you mean model.norm#0?"),
    ],
)
def test_a_wrong_name_gets_the_nearest_right_one(words: tuple[str, ...], hint: str) -> None:
    done = command(*words)
    assert done.returncode in (2, 3)
    assert hint in done.stderr


def test_one_cause_is_told_once(tmp_path: Path) -> None:
    """A kernel that is wrong in the same way everywhere: one failure in full, and the count."""
    folder = tmp_path / "operands"
    recording = "llama-a1/whole-f32"
    assert command("export", recording, str(folder), "--block", "rms_norm").returncode == 0
    checkpoints = json.loads((folder / "checkpoints.json").read_text())["checkpoints"]
    outputs = tmp_path / "outputs.safetensors"
    save_file({f"{c['id']}/out": torch.zeros(c["outputs"]["out"]["shape"]) for c in checkpoints},
              outputs)  # fmt: skip
    done = command("judge", recording, str(outputs), "--block", "rms_norm")
    assert done.returncode == 1
    assert done.stdout.count("FAIL  rms_norm  llama-a1") == 1
    assert "FAIL  rms_norm external f32: 7 checkpoints; worst" in done.stdout
    loud = command("judge", recording, str(outputs), "--block", "rms_norm", "--verbose")
    assert loud.stdout.count("FAIL  rms_norm  llama-a1") == 7
