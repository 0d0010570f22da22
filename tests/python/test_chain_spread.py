"""Chains beyond closed forms: correct code passes, a model that is not the recorded one fails.

The draws of tests/panel are those whose correct chains the closed forms alone failed.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import verify
from recorded import ids

from python_inspector.taps.options import Proof

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from python_inspector import record, tiny  # noqa: E402
from python_inspector.models.inputs import RunPlan, run_model  # noqa: E402
from tests.panel.draw import draw  # noqa: E402

DRAWS = [(2, 32), (2, 51), (2, 124), (2, 135)]
DENORMAL = [(20261130, 17), (20261130, 116)]
"""Whose final norm, and with it the logits, are denormals."""
Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes the recording of a draw, once."""

    @functools.cache
    def make(seed: int, index: int, *, trained: bool = False) -> Path:
        drawn = draw(seed, index, trained=trained)
        out = tmp_path_factory.mktemp("draw") / "r"
        with record(drawn.model(), out, proof=Proof(chained=True)) as recorder:
            run_model(recorder.model, drawn.plan())
        return out

    return make


def chain(tmp_path: Path, folder: Path, *options: str) -> dict[str, Any]:
    done = verify(tmp_path, "--fixture", str(folder), "--mode", "chained", *options)
    (result,) = done.results
    return result


@pytest.mark.sampled
@pytest.mark.parametrize(("seed", "index"), DRAWS)
def test_correct_chains_do_not_fail(
    recorded: Callable[..., Path], tmp_path: Path, seed: int, index: int
) -> None:
    folder = recorded(seed, index)
    for options in (["--device", "cpu"], ["--device", "cpu", "--no-fuse"], ["--device", "emu:32"]):
        result = chain(tmp_path, folder, *options)
        assert result["status"] in ("pass", "blind"), result["reason"]
        assert result["status"] == "pass" or result["reason"].startswith("ill conditioned")


@pytest.mark.parametrize(("seed", "index"), DENORMAL)
def test_errors_of_denormals_are_parts_of_what_chained_ones_are_parts_of(
    recorded: Callable[..., Path], tmp_path: Path, seed: int, index: int
) -> None:
    """Alone they are parts of the smallest normal number, ten times as large as these logits."""
    folder = recorded(seed, index, trained=True)
    result = chain(tmp_path, folder, "--device", "cpu", "--shadow")
    assert result["status"] == "pass", result["reason"]
    head = result["chain"]["rows"][-1]
    assert head["block"] == "lm_head"
    assert 0.5 < head["shadow"] / head["isolated"] < 2


def test_denormals_do_not_forbid_a_simulation(
    recorded: Callable[..., Path], tmp_path: Path
) -> None:
    """Their recorded values differ from the oracle by a step, which is no other model."""
    folder = recorded(20261126, 471, trained=True)
    result = chain(tmp_path, folder, "--device", "cpu", "--no-fuse")
    assert result["status"] == "pass", result["reason"]
    assert isinstance(result["chain"]["rows"][-1]["simulated"], float)


def _scaled(name: str, factor: float) -> Edit:
    def edit(config: dict[str, Any]) -> None:
        config[name] *= factor

    return edit


def _theta(config: dict[str, Any]) -> None:
    config["rope_parameters"]["rope_theta"] *= 2


def _slightly(config: dict[str, Any]) -> None:
    """By more than roundings."""
    config["rope_parameters"]["rope_theta"] *= 1 + 1e-5


def _edit(folder: Path, edit: Edit) -> None:
    file = folder / "recording.json"
    recording = json.loads(file.read_text())
    edit(recording["config"])
    file.write_text(json.dumps(recording))


@pytest.mark.parametrize(
    ("seed", "index", "edit"),
    [
        (2, 32, _theta),
        (2, 32, _scaled("rms_norm_eps", 100)),
        (2, 51, _scaled("rms_norm_eps", 10)),
        (2, 124, _scaled("time_step_min", 2)),
        (2, 135, _theta),
        (2, 135, _scaled("rms_norm_eps", 100)),
    ],
)
def test_another_model_gets_no_leave(
    recorded: Callable[..., Path], tmp_path: Path, seed: int, index: int, edit: Edit
) -> None:
    """Only a float64 chain that gives what was recorded may say what correct kernels reach."""
    folder = shutil.copytree(recorded(seed, index), tmp_path / "r")
    _edit(folder, edit)
    result = chain(tmp_path, folder, "--device", "cpu")
    assert result["status"] == "fail"
    assert all(row["simulated"] == "nan" for row in result["chain"]["rows"])
    assert result["chain"]["culprit"] or result["details"][0].startswith("no culprit: ")


@pytest.mark.nightly
@pytest.mark.parametrize("ulps", [1, -1])
def test_other_roundings_of_inverse_frequencies_are_right(tmp_path: Path, ulps: int) -> None:
    """The recorded ones are what a vectorised pow may give, and the chained oracle has them, too;
    the device makes its own, whose angles are off by more at every position."""
    model = tiny.build("llama-a1", torch.float32)
    rope = model.model.rotary_emb
    other = torch.nextafter(rope.inv_freq, rope.inv_freq + ulps)
    rope.inv_freq.copy_(other)
    rope.original_inv_freq = other.clone()
    folder = tmp_path / "r"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "has other bits when the call is run again"
        with record(model, folder, proof=Proof(chained=True)):
            run_model(model, RunPlan(ids(model, tokens=60), 57, 3, cache="dynamic"))
    result = chain(tmp_path, folder, "--device", "cpu")
    assert result["status"] == "pass", result["reason"]
    for edit in (_theta, _slightly, _scaled("rms_norm_eps", 2)):
        wrong = shutil.copytree(folder, tmp_path / "wrong", dirs_exist_ok=True)
        _edit(wrong, edit)
        assert chain(tmp_path, wrong, "--device", "cpu")["status"] == "fail"
