"""Layers of every format of quantised weights, recorded from code and computed by native ops."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import need_device, verify
from plumbline import Proof, Where, record, tiny
from quantised_layers import Layers, QuantLinear, input_of

from python_inspector.cases.quantised_ops import Size
from python_inspector.format.validate import validate
from python_inspector.quantised import FORMATS
from python_inspector.taps.quantised import recognised

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@pytest.fixture(scope="module", params=["f32 float32", "bf16 float32", "bf16 weight"])
def layers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of which the last round weights to bf16, as libraries do that dequantise them."""
    dtype, recipe = request.param.split()
    out: Path = tmp_path_factory.mktemp("layers") / dtype
    model = Layers(DTYPES[dtype], recipe).eval()
    with (
        pytest.warns(UserWarning, match="no taps"),
        record(model, Where(out, "layers"), proof=Proof(bugs=False)),
        torch.no_grad(),
    ):
        model(input_of(DTYPES[dtype]))
    return out


def document_of(folder: Path) -> Any:
    return json.loads((folder / "recording.json").read_text())


def linears(folder: Path) -> dict[str, Any]:
    return {c["path"]: c for c in document_of(folder)["checkpoints"] if c["block"] == "linear"}


def test_every_format_is_recognised(layers: Path) -> None:
    assert validate(layers) == []
    found = {path.removeprefix("of."): c["params"]["layout"] for path, c in linears(layers).items()}
    assert found == {name: name for name in FORMATS}


@pytest.mark.parametrize("device", ["oracle", "cpu", "emu:32"])
def test_every_format_is_computed(layers: Path, device: str, tmp_path: Path) -> None:
    need_device(device)
    run = verify(tmp_path, "--fixture", str(layers), "--device", device, "--block", "linear")
    found = {row["checkpoint"]: row["status"] for row in run.results if "checkpoint" in row}
    assert found == {f"of.{name}#0": "pass" for name in FORMATS}, run.stdout


def _put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda checkpoint: checkpoint["params"].__setitem__(name, value)


WRONG: dict[str, tuple[str, Callable[[Any], None]]] = {
    "GPTQ v1 read as v2": ("gptq", _put("layout", "gptq-v2")),
    "GPTQ v2 read as v1": ("gptq-v2", _put("layout", "gptq")),
    "q4_0 for no zero": (
        "int4-zero",
        lambda c: (_put("layout", "int4")(c), c["weights"].pop("zeros")),
    ),
    "zeros ignored": (
        "int8-zero",
        lambda c: (_put("layout", "int8")(c), c["weights"].pop("zeros")),
    ),
    "g_idx ignored": ("gptq", lambda c: c["weights"].pop("group_index")),
    "a shared exponent for a scale": ("mxfp4", _put("layout", "int8")),
    "groups of 16": ("int4", _put("group", [1, 16])),
    "groups of rows": ("fp8", _put("group", [16, 16])),
    "no such layout": ("int8", _put("layout", "int3")),
    "a layout of other codes": ("nf4", _put("layout", "mxfp4")),
    "no layout": ("int8", lambda c: c["params"].clear()),
    "a number for a layout": ("int8", _put("layout", 8)),
}


@pytest.mark.parametrize("device", ["oracle", "cpu", "emu:32"])
def test_wrong_params_fail(layers: Path, device: str, tmp_path: Path) -> None:
    """Each as another recording; none is taken for right, on any device."""
    need_device(device)
    taken = []
    for number, (what, (name, change)) in enumerate(WRONG.items()):
        folder = tmp_path / str(number)
        shutil.copytree(layers, folder)
        document = document_of(folder)
        (checkpoint,) = (c for c in document["checkpoints"] if c["path"] == f"of.{name}")
        change(checkpoint)
        (folder / "recording.json").write_text(json.dumps(document))
        chosen = ("--checkpoint", f"of.{name}#0")
        run = verify(tmp_path, "--fixture", str(folder), "--device", device, *chosen)
        found = [row["status"] for row in run.results if "checkpoint" in row]
        if found not in (["fail"], ["bad_input"]) and run.code not in (1, 3):
            taken.append((what, found, run.code))
    assert taken == []


def test_layers_without_a_stated_size_are_recognised() -> None:
    """Words that rows and columns fill say it."""
    layer = QuantLinear("int4", torch.float32)
    del layer.out_features
    layer.bias = None
    layer.forward = lambda x: layer.like(x, layer.weight_packed, layer.weight_scale)  # type: ignore[method-assign]
    found = recognised(layer, torch.float32)
    assert found is not None and (found.layout, found.shape) == ("int4", (24, 64))


class Fault(QuantLinear):
    """It computes something else than its tensors say."""

    def __init__(self, layout: str, wrong: Callable[[Any, Any], Any]) -> None:
        super().__init__(layout, torch.float32)
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wrong(super().forward, x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda forward, x: forward(x) * 1.001,
        lambda forward, x: forward((x * 8).round() / 8),
        lambda forward, x: forward(x).relu(),
        lambda forward, x: forward(x)[..., :-1],
        lambda forward, x: (_ for _ in ()).throw(ValueError("no")),
    ],
    ids=["scaled", "activations quantised", "with a function", "cut", "broken"],
)
def test_what_computes_anything_else_is_not(wrong: Callable[[Any, Any], Any]) -> None:
    assert recognised(Fault("int8", lambda forward, x: forward(x)), torch.float32) is not None
    assert recognised(Fault("int8", wrong), torch.float32) is None


def _quantise(module: torch.nn.Module, layout: str, dtype: torch.dtype) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear):
            size = Size(child.out_features, child.in_features, (1, 16))
            setattr(module, name, QuantLinear(layout, dtype, size, "weight"))
        else:
            _quantise(child, layout, dtype)


@pytest.mark.parametrize("layout", ["int4-zero", "gptq", "nf4"])
def test_models_are_native_down_to_their_logits(layout: str, tmp_path: Path) -> None:
    """All layers, the head among them, in a model's own dtype."""
    model = tiny.build("llama", torch.bfloat16)
    _quantise(model, layout, torch.bfloat16)
    model.eval()
    out = tmp_path / "model"
    with record(model, Where(out, layout), proof=Proof(bugs=False)), torch.no_grad():
        model(torch.arange(3, 14)[None], use_cache=False)
    assert validate(out) == []
    blocks = {c["block"] for c in document_of(out)["checkpoints"]}
    assert blocks >= {"lm_head", "decoder_layer"} and "module" not in blocks
    for device in ("oracle", "cpu", "emu:64"):
        run = verify(tmp_path, "--fixture", str(out), "--device", device)
        statuses = {row["status"] for row in run.results if "checkpoint" in row}
        assert statuses <= {"pass", "blind"} and run.code == 0, run.stdout
