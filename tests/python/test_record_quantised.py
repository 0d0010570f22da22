"""Recordings of models whose linear layers have quantised weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import need_device
from harness_runs import verify as harness_verify
from plumbline import Proof, Where, record, tiny, verify

from python_inspector.format.validate import validate

LINEAR = r"(q|k|v|o|gate|up|down)_proj#0"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Int8Linear(torch.nn.Module):
    """Codes and scales of a linear layer; the product is scaled."""

    def __init__(self, of: torch.nn.Linear, codes: torch.dtype) -> None:
        super().__init__()
        most = torch.finfo(codes).max if codes.is_floating_point else 127
        weight = of.weight.detach().float()
        scale = weight.abs().amax(1, keepdim=True) / most
        quantised = weight / scale if codes.is_floating_point else (weight / scale).round()
        self.weight = torch.nn.Parameter(quantised.to(codes), requires_grad=False)
        self.scale = torch.nn.Parameter(scale.to(of.weight.dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight.to(x.dtype).mT) * self.scale.reshape(-1)


def quantise(module: torch.nn.Module, codes: torch.dtype) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, Int8Linear(child, codes))
        else:
            quantise(child, codes)


@pytest.fixture(scope="module", params=["f32 int8", "bf16 float8_e4m3fn"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dtype, codes = request.param.split()
    out: Path = tmp_path_factory.mktemp("quantised") / dtype
    model = tiny.build("llama", DTYPES[dtype])
    quantise(model.model.layers, getattr(torch, codes))
    model.eval()
    with record(model, Where(out, "quantised"), proof=Proof(bugs=False)), torch.no_grad():
        model(torch.arange(3, 14)[None], use_cache=False)
    return out


def read(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "recording.json").read_text())
    return document


def test_codes_are_recorded_as_they_are(recorded: Path) -> None:
    assert validate(recorded) == []
    document = read(recorded)
    assert document["version"] == 3
    kinds = {entry["dtype"] for entry in document["tensors"].values()}
    assert kinds & {"i8", "f8_e4m3"}
    blocks = {c["id"].partition("#")[0].rpartition(".")[2]: c for c in document["checkpoints"]}
    layer = blocks["q_proj"]
    layout = "int8" if recorded.name == "f32" else "fp8"
    assert (layer["block"], layer["params"]) == ("linear", {"layout": layout, "group": [1, 32]})
    assert set(layer["weights"]) == {"codes", "scales"}
    down = blocks["mlp"]["params"]["layouts"]["down_proj"]
    assert down == {"layout": layout, "group": [1, 48], "shape": [32, 48]}
    names = {name.removeprefix("model.layers.0.") for name in map(_name, _weights(document))}
    assert {"self_attn.q_proj.weight", "self_attn.q_proj.scale"} <= names
    assert {c["block"] for c in document["checkpoints"]} >= {
        "glu_mlp",
        "attention",
        "decoder_layer",
    }
    assert "module" not in {c["block"] for c in document["checkpoints"]}


def _weights(document: Any) -> list[Any]:
    return [entry for key, entry in document["tensors"].items() if key.startswith("w")]


def _name(entry: Any) -> str:
    return str(entry["name"])


@pytest.mark.parametrize("device", ["oracle", "cpu", "emu:32"])
def test_native_blocks_compute_them(recorded: Path, device: str, tmp_path: Path) -> None:
    need_device(device)
    run = harness_verify(tmp_path, "--fixture", str(recorded), "--device", device)
    assert run.code == 0, run.stdout
    found = {row["checkpoint"]: row for row in run.results if "checkpoint" in row}
    assert len(found) == len(read(recorded)["checkpoints"])
    assert {row["status"] for row in found.values()} <= {"pass", "blind"}
    if device != "oracle":
        assert any("quantised_linear" in it for it in found["model.layers.0.mlp#0"]["impl"])


def product(inputs: Any, weights: Any, scale: Any) -> torch.Tensor:
    """Rounded once."""
    x = inputs["x"] if "x" in inputs else next(iter(inputs.values()))
    return (x.float() @ (weights["codes"].float() * scale.float()).mT).to(x.dtype)


def test_kernels_are_judged_by_it(recorded: Path) -> None:
    verdicts = verify(lambda i, w, _: product(i, w, w["scales"]), recorded, LINEAR, margins=False)
    assert len(verdicts) == 21 and {v.status for v in verdicts} == {"pass"}
    wrong = verify(
        lambda i, w, _: product(i, w, w["scales"].roll(1, 0)), recorded, LINEAR, margins=False
    )
    assert {v.status for v in wrong} == {"fail"}


def test_numpy_has_codes(recorded: Path) -> None:
    seen = set()

    def kernel(inputs: Any, weights: Any, _: Any) -> Any:
        seen.add(weights["codes"].dtype.name)
        x = next(iter(inputs.values()))
        return x @ (weights["codes"].astype("f4") * weights["scales"].astype("f4")).T

    verdicts = verify(kernel, recorded, "q_proj#0", arrays="numpy", margins=False)
    assert seen == {"int8" if recorded.name == "f32" else "float32"}
    assert {v.status for v in verdicts} == {"pass"}
