"""Architectures without taps: complete recordings, checked; the table of all of them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from harness_runs import ROOT

from python_inspector import RecordError, RecordWarning, record, tiny
from python_inspector.cases import architectures
from python_inspector.cases.run import estimate
from python_inspector.cases.self_check import check
from python_inspector.cli.inspector import main
from python_inspector.format.validate import validate
from python_inspector.models import any_tiny
from python_inspector.models.any_tiny import configurations
from python_inspector.models.inputs import RunPlan, random_ids, run_model
from python_inspector.taps.options import Options, Proof

TABLE = ROOT / "fixtures" / "architectures.txt"
AT_NIGHT = ("gpt_oss", "mixtral", "deepseek_v3", "qwen3_next", "rwkv")
CHOSEN = ("olmo2", *(pytest.param(name, marks=pytest.mark.nightly) for name in AT_NIGHT))
"""Norms of q and k; sinks, experts; latent attention and groups of experts, a delta rule, a model
that writes to its own weights."""


def rows_of_table() -> dict[str, list[str]]:
    lines = [line.split() for line in TABLE.read_text().splitlines()[2:]]
    return {words[0]: words[1:] for words in lines if len(words) == 10}


@functools.cache
def surveyed(model_type: str) -> architectures.Row:
    (row,) = architectures.survey([model_type])
    return row


@pytest.mark.parametrize("model_type", CHOSEN)
def test_complete_and_as_the_table_says(model_type: str) -> None:
    row = surveyed(model_type)
    assert row.problems == []
    for recorded in row.by_dtype.values():
        assert recorded.without == recorded.given == 0
        assert recorded.beyond == []
    cells = [str(cell) for cell in architectures._cells(row)[1:]]
    counted = [0, 1, 2, 3, 5, 7]  # not `open`, nor what another CPU's sums decide
    known = rows_of_table()[model_type]
    assert [cells[i] for i in counted] == [known[i] for i in counted]


def test_the_table_has_all_of_them() -> None:
    known = rows_of_table()
    assert set(known) == set(architectures.names())
    assert len(known) >= 45


def test_a_reference_beyond_its_limits_is_found(tmp_path: Path) -> None:
    """The same recording with one element of one reference moved by 1 %."""
    out = tmp_path / "olmo2" / "f32"
    architectures.record_tiny("olmo2", "f32", out)
    assert all(checked.worst <= 1 for checked in check(out))
    from safetensors.torch import load_file, save_file

    from python_inspector.format.strict_json import load_json

    recording = load_json(out / "recording.json")
    (norm,) = [c for c in recording["checkpoints"] if c["id"] == "model.norm#0"]
    tensors = load_file(out / "tensors.safetensors")
    moved = tensors[norm["outputs"]["out"]["delta"]]
    moved[0, 3, 5] += 0.01
    save_file(tensors, out / "tensors.safetensors")
    beyond = {checked.checkpoint for checked in check(out) if checked.worst > 1}
    assert "model.norm#0" in beyond


def test_weights_are_drawn_by_kind() -> None:
    model = tiny.build("olmo2", torch.float32)
    again = tiny.build("olmo2", torch.float32)
    other = tiny.build("olmo2", torch.float32, seed=2)
    for (name, a), b, c in zip(
        model.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        assert not torch.equal(a, c), name
        if name.endswith("norm.weight"):
            assert 0.1 < float(a.std()) < 0.6, name
            assert 0.6 < float(a.mean()) < 1.4, name
    assert len(configurations()) >= 45


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "_row", surveyed)  # of each it is made once
    assert main(["architectures", "--list"]) == 0
    assert "mixtral" in capsys.readouterr().out.splitlines()
    assert main(["architectures", "mixtrall"]) == 2
    assert "no architecture 'mixtrall'" in capsys.readouterr().err
    assert main(["architectures", "olmo2", "--markdown"]) == 0
    assert "| olmo2 |" in capsys.readouterr().out


@pytest.mark.parametrize("model_type", ["llama4_text", "gemma3n_text"])
def test_a_chain_whose_decoder_or_widths_are_not_where_others_have_them(
    tmp_path: Path, model_type: str
) -> None:
    """llama4_text is its own base model; gemma3n_text has a width per layer."""
    model = any_tiny.build_any(model_type, torch.float32, "eager", 1)
    plan = RunPlan(random_ids(1, 4, 40), tokens=3, steps=1, cache="dynamic")
    assert estimate(model, plan, Options()).tensors > 0
    unknown = pytest.warns(RecordWarning, match="no taps")
    with unknown, record(model, tmp_path / "r", proof=Proof(chained=True, spread=0)):
        run_model(model, plan)
    assert validate(tmp_path / "r") == []
    checkpoints = json.loads((tmp_path / "r/recording.json").read_text())["checkpoints"]
    assert any("chained_delta" in out for c in checkpoints for out in c["outputs"].values())


def test_a_model_that_writes_to_its_weights_has_no_chain(tmp_path: Path) -> None:
    model = any_tiny.build_any("rwkv", torch.float32, "eager", 1)
    plan = RunPlan(random_ids(1, 4, 40), tokens=3, steps=1, cache="dynamic")
    with (
        pytest.raises(RecordError, match=r"in float64 .*: record it without chained"),
        pytest.warns(RecordWarning, match="no taps"),
        record(model, tmp_path / "r", proof=Proof(chained=True, spread=0)),
    ):
        run_model(model, plan)
