"""Recordings of models that accelerate splits over devices have the bytes of the whole model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from python_inspector import RecordError, record, tiny
from python_inspector.cli.inspector import main
from python_inspector.models import dispatch
from python_inspector.taps.options import Proof

RUN = ["--tokens", "5", "--steps", "1"]


def halves(model: torch.nn.Module) -> dict[str, str]:
    """The embedding and the first layer stay in memory, everything else is on disk."""
    paths = [path for path, _ in model.named_children() if path != "model"]
    for path, child in model.get_submodule("model").named_children():
        parts = [name for name, _ in child.named_children()] if path == "layers" else []
        paths += [f"model.{path}.{part}" for part in parts] or [f"model.{path}"]
    near = ("model.embed_tokens", "model.layers.0")
    return {path: "cpu" if path in near else "disk" for path in paths}


def recorded(folder: Path, model: str, *options: str) -> dict[str, bytes]:
    """The files of a recording, without the command and the time in them."""
    out = folder / "model" / "case"
    assert main(["record", "--model", model, *RUN, *options, "--out", str(out)]) == 0
    files = {path.name: path.read_bytes() for path in sorted(out.iterdir())}
    header = json.loads(files["recording.json"])
    del header["provenance"]["command"], header["provenance"]["created"]
    return files | {"recording.json": json.dumps(header).encode()}


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["llama-a1", "gemma2-a4", "zamba2-a6"])
def test_a_split_model_gives_the_same_recording(tmp_path: Path, name: str) -> None:
    split = json.dumps(halves(tiny.build(name, torch.float32)))
    spread = recorded(tmp_path / "split", f"tiny:{name}", "--device-map", split)
    assert spread == recorded(tmp_path / "whole", f"tiny:{name}")


def test_offloaded_weights_are_there_only_while_a_block_needs_them() -> None:
    model = tiny.build("llama-a1", torch.float32)
    split = dispatch.split(model, halves(model))
    layer = split.get_submodule("model.layers.1")
    assert dispatch.offloads(split)
    assert all(parameter.is_meta for parameter in layer.parameters())
    loaded = dispatch.load(layer)
    assert not any(parameter.is_meta for parameter in layer.parameters())
    assert dispatch.load(layer) == []
    dispatch.unload(loaded)
    assert all(parameter.is_meta for parameter in layer.parameters())


def test_a_chained_recording_needs_all_weights_at_once(tmp_path: Path) -> None:
    model = tiny.build("llama-a1", torch.float32)
    split = dispatch.split(model, halves(model))
    with (
        pytest.raises(RecordError, match="some of its weights are offloaded"),
        record(split, tmp_path / "out", proof=Proof(chained=True)),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("everywhere", "is none of auto, balanced, balanced_low_0, sequential and no JSON"),
        ("[1]", "expected module paths and devices such as"),
        ('{"model": null}', "expected module paths and devices such as"),
    ],
)
def test_a_map_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    options = ["record", "--model", "tiny:llama-a1", "--device-map", text]
    assert main([*options, "--out", str(tmp_path / "out")]) == 2
    assert problem in capsys.readouterr().err


def test_a_map_that_does_not_fit_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["record", "--model", "tiny:llama-a1", "--device-map", '{"lm_head": "cpu"}']
    assert main([*options, "--out", str(tmp_path / "out")]) == 3
    assert "--device-map: " in capsys.readouterr().err
