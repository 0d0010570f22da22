"""Recordings of models with pruned linear layers: values and masks, zeros exact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import need_device
from harness_runs import verify as harness_verify
from plumbline import Proof, Where, record, tiny, verify
from torch.nn.utils import prune

from python_inspector.format.validate import validate

LINEAR = r"(q|k|v|o|gate|up|down)_proj#0$"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """1 for the two largest of each four neighbours."""
    runs = weight.detach().float().abs().unflatten(-1, (-1, 4))
    return torch.zeros_like(runs).scatter(-1, runs.topk(2).indices, 1).flatten(-2)


def pruned(model: torch.nn.Module, how: str) -> None:
    for module in model.modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        if how == "half":
            prune.l1_unstructured(module, "weight", 0.5)
        else:
            prune.custom_from_mask(module, "weight", two_of_four(module.weight).to(module.weight))


@pytest.fixture(scope="module", params=["f32 half", "bf16 2:4"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dtype, how = request.param.split()
    out: Path = tmp_path_factory.mktemp("pruned") / dtype
    model = tiny.build("llama", DTYPES[dtype])
    pruned(model, how)
    model.eval()
    proof = Proof(bugs=False, backward=dtype == "f32")
    with record(model, Where(out, "pruned"), proof=proof), torch.no_grad():
        model(torch.arange(3, 14)[None], use_cache=False)
    return out


def document_of(folder: Path) -> Any:
    return json.loads((folder / "recording.json").read_text())


def test_masks_are_recorded(recorded: Path) -> None:
    assert validate(recorded) == []
    by_id = {c["id"]: c for c in document_of(recorded)["checkpoints"]}
    layer = by_id["model.layers.0.mlp.gate_proj#0"]
    assert (layer["block"], set(layer["weights"])) == ("linear", {"weight_orig", "weight_mask"})
    whole = by_id["model.layers.0#0"]
    assert whole["block"] == "decoder_layer"
    assert whole["weights"]["mlp.gate_proj.weight_mask"] == layer["weights"]["weight_mask"]
    assert set(by_id["lm_head:logits#0"]["weights"]) == {"weight_orig", "weight_mask"}


@pytest.mark.parametrize("device", ["oracle", "cpu", "emu:32"])
def test_native_blocks_compute_them(recorded: Path, device: str, tmp_path: Path) -> None:
    need_device(device)
    run = harness_verify(tmp_path, "--fixture", str(recorded), "--device", device)
    found = {row["checkpoint"]: row["status"] for row in run.results if "checkpoint" in row}
    assert set(found.values()) <= {"pass", "blind"} and run.code == 0, run.stdout
    assert len(found) >= len(document_of(recorded)["checkpoints"]) // 2


@pytest.mark.parametrize("recorded", ["f32 half"], indirect=True)
def test_gradients_of_masked_weights_are_computed(recorded: Path, tmp_path: Path) -> None:
    by_id = {c["id"]: c for c in document_of(recorded)["checkpoints"]}
    layer = by_id["model.layers.0.mlp.gate_proj#0/backward"]
    assert set(layer["outputs"]) == {"d_x", "d_weight_orig"}
    options = ("--device", "cpu", "--direction", "backward")
    run = harness_verify(tmp_path, "--fixture", str(recorded), *options)
    found = {row["checkpoint"]: row["status"] for row in run.results if "checkpoint" in row}
    assert len(found) > 70 and set(found.values()) == {"pass"}, run.stdout


def _without_mask(weights: dict[str, str]) -> dict[str, str]:
    return {"weight": weights["weight_orig"]}


@pytest.mark.parametrize("device", ["oracle", "cpu", "emu:32"])
def test_a_kernel_without_the_mask_fails(recorded: Path, device: str, tmp_path: Path) -> None:
    """As if the weight were whole, and with the mask of another layer."""
    need_device(device)
    document = document_of(recorded)
    by_id = {c["id"]: c for c in document["checkpoints"]}
    first, second = (by_id[f"model.layers.{i}.mlp.gate_proj#0"]["weights"] for i in (0, 1))
    for number, weights in enumerate(
        (_without_mask(first), first | {"weight_mask": second["weight_mask"]})
    ):
        folder = tmp_path / str(number)
        shutil.copytree(recorded, folder)
        by_id["model.layers.0.mlp.gate_proj#0"]["weights"] = weights
        (folder / "recording.json").write_text(json.dumps(document))
        chosen = ("--checkpoint", "model.layers.0.mlp.gate_proj#0", "--device", device)
        run = harness_verify(tmp_path, "--fixture", str(folder), *chosen)
        assert [row["status"] for row in run.results if "checkpoint" in row] == ["fail"]


def test_kernels_are_judged_by_it(recorded: Path) -> None:
    def right(inputs: Any, weights: Any, _: Any) -> torch.Tensor:
        return inputs["x"] @ (weights["weight_orig"] * weights["weight_mask"]).mT

    def wrong(inputs: Any, weights: Any, _: Any) -> torch.Tensor:
        return inputs["x"] @ weights["weight_orig"].mT

    verdicts = verify(right, recorded, LINEAR, margins=False)
    assert len(verdicts) == 21 and {v.status for v in verdicts} == {"pass"}
    assert {v.status for v in verify(wrong, recorded, LINEAR, margins=False)} == {"fail"}
