"""Stretches of a run, each recorded by a process of its own: together the bytes of one process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_joined import checkpoints, require_same, run
from test_processes import names, words

from python_inspector import record
from python_inspector.cli import inspector as cli
from python_inspector.models import tiny
from python_inspector.models.inputs import RunPlan, random_ids, run_model
from python_inspector.recorder.resume import Resume, StretchIsOver
from python_inspector.stretches import Place, stretch_of, text_of
from python_inspector.taps.options import Options
from python_inspector.trace import truncation

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")

MODELS = ("gemma2", "llama", "zamba2", "mistral")
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {"steps": 0}) for name in MODELS},
    "rows": ("gemma2", {"rows": 4, "whole_layers": (1,), "steps": 0}),
    "chunks": ("llama", {"chunks": (4, 3), "steps": 0}),
    "leaves": ("zamba2", {"oracle": "leaves", "steps": 0}),
    "some kinds": ("mistral", {"blocks": ("rms_norm", "linear"), "steps": 0}),
    "some layers": ("llama", {"layers": (1,), "steps": 1}),
    "some calls": ("llama", {"calls": (0, 2), "oracle": False}),
}


def places(name: str, calls: int) -> list[Place]:
    model: Any = tiny.build(name, torch.bfloat16, seed=1)
    layers = model.config.num_hidden_layers
    return [(call, layer) for call in range(calls) for layer in range(layers + 1)]


@pytest.mark.parametrize(("name", "options"), RUNS.values(), ids=RUNS)
def test_a_run_cut_at_every_place_is_joined_to_the_bytes_of_one_process(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", name, **options)
    calls = len(options.get("chunks", (1,))) + options.get("steps", 2)
    begins = places(name, calls)
    ends = [*begins[1:], (calls, 0)]
    others = [
        run(tmp_path / f"{begin[0]}.{begin[1]}", name, stretch=(begin, end), **options)
        for begin, end in zip(begins[1:], ends[1:], strict=True)
    ]
    joined = run(tmp_path / "joined", name, stretch=((0, 0), ends[0]), others=others, **options)
    require_same(joined, whole)


@pytest.mark.usefixtures("truncating_accelerator")
def test_what_layers_lose_by_truncation_does_not_depend_on_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call's must not come from the one before, which another process may have recorded."""
    monkeypatch.setattr(truncation, "_NEAR", float("inf"))
    test_a_run_cut_at_every_place_is_joined_to_the_bytes_of_one_process(
        "gemma2", {"tokens": 8, "chunks": (4, 4), "steps": 0}, tmp_path
    )


def paths(recording: Path) -> set[str]:
    return {checkpoint["path"] for checkpoint in checkpoints(recording)}


@pytest.mark.parametrize("name", [*MODELS, "one-layer"])
def test_what_stands_at_a_place(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 0, "spread": 0}
    if name == "one-layer":
        name, options["change"] = "llama", with_one_layer
    last = 1 if "change" in options else places(name, 1)[-1][1]
    found = {}
    for layer in {0, last - 1, last}:
        stretch = (0, layer), (0, layer + 1)
        found[layer] = paths(run(tmp_path / f"{layer}", name, stretch=stretch, **options))
    assert "model.embed_tokens" in found[0]
    assert f"model.layers.{last - 1}" in found[last - 1]
    assert not any("layers" in path for path in found[last])
    norm = "model.final_layernorm" if name == "zamba2" else "model.norm"
    assert {norm, "lm_head"} <= found[last]
    assert not any({norm, "lm_head"} & found[layer] for layer in found if layer != last)


def with_one_layer(model: Any) -> None:
    del model.model.layers[1:]
    model.config.num_hidden_layers = 1


def test_the_run_ends_with_the_stretch(tmp_path: Path) -> None:
    """Nothing comes after it that is recorded."""
    model: Any = tiny.build("llama", torch.bfloat16, seed=1)
    plan = RunPlan(random_ids(1, 9, model.config.vocab_size), 7, 2, cache="dynamic")
    stretch = ((0, 1), (1, 1))
    with (
        record(model, tmp_path / "x", spread=0, bugs=False, stretch=stretch) as recorder,
        pytest.raises(StretchIsOver),
    ):
        run_model(model, plan)
    assert len(recorder.runs) == 2
    layers = {(c["step"], c["path"].split(".")[2]) for c in checkpoints(tmp_path / "x")
              if ".layers." in c["path"]}  # fmt: skip
    assert layers == {(0, "1"), (0, "2"), (1, "0")}


def test_places_only_go_on() -> None:
    """Where a later layer has a module of an earlier one, and in every call anew."""
    stub: Any = SimpleNamespace(finished={})
    resume = Resume(stub, stub, Options(), 3)
    called = ("", "embed", "layers.0", "layers.1", "layers.0.shared", "norm", "layers.2", "norm")
    places = []
    for call in range(2):
        for path in called:
            resume.enter(path, call)
            places.append(resume.place)
    layers = (0, 0, 0, 1, 1, 1, 2, 3)
    assert places == [(call, layer) for call in range(2) for layer in layers]


@pytest.mark.parametrize("stretch", [((0, 0), (1, 0)), ((0, 13), (12, 3))])
def test_a_stretch_as_text(stretch: tuple[Place, Place]) -> None:
    assert stretch_of(text_of(stretch)) == stretch


@pytest.mark.parametrize("text", ["0.1", "0:1", "0.1:1", "a.0:1.0", "0.1:2.0:3.0", "-1.0:1.0"])
def test_what_is_no_stretch(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["record", "--model", "tiny:llama", "--out", "x", f"--stretch={text}"])
    assert f"{text!r} is not a stretch like 0.13:2.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gemma2", "--steps 1 --jobs 3"),
        ("llama", "--jobs 2"),
        ("zamba2", "--jobs 4 --rows 2 --steps 1"),
        ("mistral", "--chunks 2,4 --jobs 3 --calls 1"),
    ],
)
def test_several_processes_write_the_bytes_of_one(
    name: str, options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    tiny.build(name, torch.bfloat16, attention="eager", seed=1).save_pretrained(folder)
    assert cli.main(words(folder, tmp_path / "one", options + " --jobs 1")) == 0
    assert cli.main(words(folder, tmp_path / "some", options)) == 0
    jobs = options.split("--jobs ")[1][0]
    assert f" in {jobs} processes, about " in capsys.readouterr().out
    require_same(tmp_path / "some", tmp_path / "one")
    assert names(tmp_path) == ["model", "one", "some"]
