"""Chains of padded runs: what padding makes of itself is not judged, all else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness_runs import verify
from recorded import DTYPES, ids

from python_inspector import record, tiny
from python_inspector.models.inputs import RunPlan, pad_left, run_model
from python_inspector.taps.options import Proof

STEPS = 3


def padded(out: Path, name: str, attention: str, cache: str | None, pads: tuple[int, ...]) -> Path:
    """A chained recording, the first row (and others) with padding on the left."""
    model = tiny.build(name, DTYPES["f32"], attention=attention)
    x = pad_left(ids(model, len(pads), 13), pads)
    steps = STEPS if cache else 0
    plan = RunPlan(x, 13 - steps, steps, None, pads, cache, max_length=16)
    with record(model, out, proof=Proof(chained=True)):
        run_model(model, plan)
    return out


@pytest.mark.parametrize("name", ["llama-a1", "mistral-b1"])
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_padding_under_sdpa(tmp_path: Path, name: str, cache: str | None) -> None:
    """Torch's attention makes something else of rows without allowed keys than our kernels do."""
    folder = padded(tmp_path / "r", name, "sdpa", cache, (4, 0, 2))
    for device in ("cpu", "emu:32"):
        done = verify(tmp_path, "--fixture", str(folder), "--mode", "chained", "--device", device)
        assert [result["status"] for result in done.results] == ["pass"], done.stdout


@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_what_is_no_padding_is_judged(tmp_path: Path, cache: str | None) -> None:
    folder = padded(tmp_path / "r", "llama-a1", "sdpa", cache, (4, 0, 2))
    config = json.loads((folder / "recording.json").read_text())
    config["config"]["rms_norm_eps"] *= 100
    (folder / "recording.json").write_text(json.dumps(config))
    done = verify(tmp_path, "--fixture", str(folder), "--mode", "chained", "--device", "cpu")
    assert [result["status"] for result in done.results] == ["fail"], done.stdout


@pytest.mark.parametrize("name", ["llama-a3-dynamic", "llama-a3-longrope"])
def test_padding_of_all_rows_is_no_length(tmp_path: Path, name: str) -> None:
    """Frequencies follow from the largest position, which padding does not move."""
    folder = padded(tmp_path / "r", name, "eager", "dynamic", (4, 2))
    done = verify(tmp_path, "--fixture", str(folder), "--mode", "chained", "--device", "cpu")
    assert [result["status"] for result in done.results] == ["pass"], done.stdout
