"""A forward call of which one process records the end: the same bytes as by one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from test_joined import checkpoints, require_same
from test_processes import finished, names, words

from python_inspector import cli
from python_inspector.cases import processes
from python_inspector.cases.processes import has_layers, sensible
from python_inspector.models import tiny

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")

MODELS = ("gemma2", "llama", "zamba2", "mistral")


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of a described architecture, in a folder."""
    folder = tmp_path_factory.mktemp(request.param)
    tiny.build(request.param, torch.bfloat16, attention="eager", seed=1).save_pretrained(folder)
    return folder


def ids(recording: Path) -> list[str]:
    return [checkpoint["id"] for checkpoint in checkpoints(recording)]


def test_three_processes_write_the_bytes_of_one(folder: Path, tmp_path: Path) -> None:
    assert cli.main(words(folder, tmp_path / "one", "--steps 2 --jobs 1")) == 0
    code, said, errors = finished(words(folder, tmp_path / "three", "--steps 2 --jobs 3"))
    assert code == 0, errors
    assert "recording 3 forward calls in 3 processes, about " in said
    require_same(tmp_path / "three", tmp_path / "one")
    assert names(tmp_path) == ["one", "three"]


def test_both_parts_of_a_call_are_all_of_it_in_order(folder: Path, tmp_path: Path) -> None:
    for name, options in (("all", ""), ("layers", "--part layers"), ("behind", "--part behind")):
        given = words(folder, tmp_path / name, f"--steps 1 --calls 0 --jobs 1 {options}")
        assert cli.main(given) == 0
    first, second = ids(tmp_path / "layers"), ids(tmp_path / "behind")
    assert first + second == ids(tmp_path / "all")
    assert second and not any(".layers." in name for name in second)
    assert any("lm_head" in name for name in second)
    assert any("embed_tokens" in name for name in first)


@pytest.mark.parametrize("options", ["--rows 2", "--layers 0", "--blocks rms_norm", "--jobs 2"])
def test_what_is_not_split(options: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny.build("llama", torch.bfloat16, attention="eager", seed=1).save_pretrained(folder)
    given = words(folder, tmp_path / "r", "--steps 1 --jobs 3 " + options)
    code, said, errors = finished(given)
    assert code == 0, errors
    assert "recording 2 forward calls in 2 processes, about " in said


def test_layers_in_a_row_are_those_of_described_models(tmp_path: Path) -> None:
    assert not has_layers(str(tmp_path))
    for config, expected in (
        ({"model_type": "gemma2", "num_hidden_layers": 2}, True),
        ({"model_type": "gemma2"}, False),
        ({"model_type": "of somebody", "num_hidden_layers": 2}, False),
        ([], False),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert has_layers(str(tmp_path)) is expected
    (tmp_path / "config.json").write_text("{")
    assert not has_layers(str(tmp_path))


@pytest.mark.parametrize(("gigabytes", "cores", "calls", "expected"), [
    (80, 16, 5, 4),
    (80, 12, 5, 3),
    (32, 16, 5, 2),
    (80, 16, 2, 1),
])  # fmt: skip
def test_the_end_is_worth_a_process_where_other_calls_are(
    gigabytes: int, cores: int, calls: int, expected: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(processes, "memory_of", lambda name: gigabytes << 30)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores), raising=False)
    (tmp_path / "a.safetensors").touch()
    os.truncate(tmp_path / "a.safetensors", 4 << 30)
    assert sensible("cuda:0", str(tmp_path), calls, split=True) == expected
