"""Chains of padded runs: what padding makes of itself is not judged, all else is."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness_runs import verify
from recorded import DTYPES, ids

from python_inspector import record, tiny
from python_inspector.models.inputs import RunPlan, pad_left, run_model
from python_inspector.taps.options import Proof

STEPS = 3


Make = Callable[[str, str, str | None, tuple[int, ...]], Path]


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes a chained recording, once, the first row (and others) with padding on the left."""

    @functools.cache
    def make(name: str, attention: str, cache: str | None, pads: tuple[int, ...]) -> Path:
        model = tiny.build(name, DTYPES["f32"], attention=attention)
        x = pad_left(ids(model, len(pads), 13), pads)
        steps = STEPS if cache else 0
        plan = RunPlan(x, 13 - steps, steps, None, pads, cache, max_length=16)
        out = tmp_path_factory.mktemp("padded") / "r"
        with record(model, out, proof=Proof(chained=True)):
            run_model(model, plan)
        return out

    return make


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["llama-a1", "mistral-b1"])
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_padding_under_sdpa(padded: Make, tmp_path: Path, name: str, cache: str | None) -> None:
    """Torch's attention makes something else of rows without allowed keys than our kernels do."""
    folder = padded(name, "sdpa", cache, (4, 0, 2))
    for device in ("cpu", "emu:32"):
        done = verify(tmp_path, "--fixture", str(folder), "--mode", "chained", "--device", device)
        assert [result["status"] for result in done.results] == ["pass"], done.stdout


@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_what_is_no_padding_is_judged(padded: Make, tmp_path: Path, cache: str | None) -> None:
    made = padded("llama-a1", "sdpa", cache, (4, 0, 2))
    folder = shutil.copytree(made, tmp_path / "r")
    config = json.loads((folder / "recording.json").read_text())
    config["config"]["rms_norm_eps"] *= 100
    (folder / "recording.json").write_text(json.dumps(config))
    done = verify(tmp_path, "--fixture", str(folder), "--mode", "chained", "--device", "cpu")
    assert [result["status"] for result in done.results] == ["fail"], done.stdout


@pytest.mark.parametrize("name", ["llama-a3-dynamic", "llama-a3-longrope"])
def test_padding_of_all_rows_is_no_length(padded: Make, tmp_path: Path, name: str) -> None:
    """Frequencies follow from the largest position, which padding does not move."""
    folder = padded(name, "eager", "dynamic", (4, 2))
    done = verify(tmp_path, "--fixture", str(folder), "--mode", "chained", "--device", "cpu")
    assert [result["status"] for result in done.results] == ["pass"], done.stdout
