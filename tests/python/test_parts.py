"""Recordings in parts: together what one recording of the run has, whoever makes which part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import command
from recorded import asked
from test_cli import refused

from python_inspector import record
from python_inspector.cases import parts
from python_inspector.cases.parts import Part, is_of_parts, parts_of
from python_inspector.cli import inspector as cli
from python_inspector.format.references import with_keys_of
from python_inspector.format.validate import validate
from python_inspector.models import tiny
from python_inspector.models.inputs import RunPlan, random_ids, run_model
from python_inspector.trace import truncation

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")


def words(model: str | Path, out: Path, options: str = "") -> list[str]:
    given = "--dtype bf16 --tokens 6 --effort fast --name test/run"
    return ["record", "--model", str(model), "--out", str(out), *given.split(), *options.split()]


def recorded(model: str | Path, out: Path, options: str = "") -> Path:
    assert cli.main(words(model, out, options)) == 0
    return out


def document(recording: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((recording / "recording.json").read_text())
    return found


def content(recording: Path) -> dict[str, str]:
    """Its checkpoints by id, tensors by what they are, contracts and operations in full."""
    found = document(recording)
    where = ("file", "model_file", "payload_of")
    table = {
        key: json.dumps({name: value for name, value in entry.items() if name not in where})
        for key, entry in found["tensors"].items()
    }
    checkpoints = {}
    for checkpoint in found["checkpoints"]:
        entry = with_keys_of(checkpoint, table.__getitem__)
        entry["contract"] = found["contracts"][entry["contract"]]
        for of in (entry, *entry["outputs"].values()):
            if "trace" in of:
                of["trace"] = found["traces"][of["trace"]]
        checkpoints[entry["id"]] = json.dumps(entry, indent=1)
    return checkpoints


def content_of_parts(out: Path) -> dict[str, str]:
    """That of all; no checkpoint is in two."""
    found: dict[str, str] = {}
    for part in parts.complete(out):
        more = content(part)
        assert not found.keys() & more.keys(), part
        found |= more
    return found


def without_caches(found: Mapping[str, str]) -> dict[str, Any]:
    """Outputs of a module around all layers have the caches of those that are in no part of its."""
    out = {}
    for id, text in found.items():
        entry = out[id] = json.loads(text)
        if entry["path"] == "model":
            for name in [name for name in entry["outputs"] if name.startswith("past_key_values")]:
                del entry["outputs"][name]
    return out


def files(folder: Path) -> dict[str, bytes]:
    """All below it, but for when it was made."""
    return {
        str(path.relative_to(folder)): b"\n".join(
            line for line in path.read_bytes().splitlines() if b'"created": ' not in line
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([], []),
        ([0], ["layers-0"]),
        ([0, 1, 2], ["layers-0", "layers-1", "layers-2"]),
        ([3, 11], ["layers-03", "layers-11"]),
        ([*range(26)], ["00-03", "04-07", "08-11", "12-15", "16-19", "20-23", "24-25"]),
    ],
)
def test_parts_of_layers(layers: list[int], expected: list[str]) -> None:
    outside, *others = parts_of(layers)
    assert outside == Part("outside", outside=True)
    assert [part.name.removeprefix("layers-") for part in others] == [
        name.removeprefix("layers-") for name in expected
    ]
    assert [index for part in others for index in part.layers] == layers
    assert len(others) <= parts.MOST
    assert parts_of(layers, chained=True) == [Part("chain", chain=True), outside, *others]


RUNS = {
    "llama": ("tiny:llama-a1", "--steps 2"),
    "chunks": ("tiny:llama-a1", "--chunks 4,2 --steps 1"),
    "gemma2": ("tiny:gemma2", "--steps 1"),
    "rows": ("tiny:gemma2", "--rows 4 --whole-layers 1"),
    "zamba2, whose layers share modules": ("tiny:zamba2", "--steps 1"),
    "without taps": ("tiny:mixtral", "--steps 1"),
    "without an oracle": ("tiny:zamba2", "--effort none"),
    "some layers": ("tiny:gemma2", "--layers 1,3"),
    "some calls": ("tiny:llama-a1", "--steps 3 --calls 0,2"),
    "some kinds": ("tiny:mistral", "--blocks rms_norm,linear"),
    "chained": ("tiny:gemma2", "--chained --steps 1"),
    "chain alone": ("tiny:llama-a1", "--chained --blocks rotary_table --no-internals"),
}


def both(folder: Path, model: str, options: str) -> Path:
    """A recording, and the same in parts."""
    recorded(model, folder / "whole", options)
    recorded(model, folder / "parts", options + " --jobs 1")
    return folder


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return both(tmp_path_factory.mktemp("chained"), *RUNS["chained"])


def require_together(folder: Path) -> None:
    whole, found = content(folder / "whole"), content_of_parts(folder / "parts")
    assert found.keys() == whole.keys()
    assert without_caches(found) == without_caches(whole)
    assert names(folder) == ["parts", "whole"]


@pytest.mark.sampled
@pytest.mark.parametrize("run", [run for run in RUNS if run != "chained"])
def test_parts_hold_together_what_one_recording_does(run: str, tmp_path: Path) -> None:
    require_together(both(tmp_path, *RUNS[run]))


def test_parts_hold_a_chain_together(chained: Path) -> None:
    require_together(chained)


def test_a_layer_may_use_a_module_of_another_one(tmp_path: Path) -> None:
    """The attention, whose facts the layer's own block needs."""
    model: Any = tiny.build("llama", torch.bfloat16, seed=1)
    model.model.layers[1].self_attn = model.model.layers[0].self_attn
    plan = RunPlan(random_ids(1, 6, model.config.vocab_size), 6)
    given: dict[str, Any] = {"spread": 2, "bugs": False}
    for name, options in (("whole", given), ("part", given | {"layers": (1,), "outside": False})):
        with record(model, *asked(tmp_path / name, **options)):
            run_model(model, plan)
    whole, part = content(tmp_path / "whole"), content(tmp_path / "part")
    assert "model.layers.1#0" in part
    assert part == {id: whole[id] for id in part}


@pytest.mark.usefixtures("truncating_accelerator")
def test_what_layers_lose_by_truncation_does_not_depend_on_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncation, "_NEAR", float("inf"))
    require_together(both(tmp_path, "tiny:gemma2", "--tokens 8 --chunks 4,4"))


def test_readers_take_the_parts_as_they_take_a_recording(chained: Path, tmp_path: Path) -> None:
    whole, out = chained / "whole", chained / "parts"
    assert [validate(part) for part in parts.complete(out)] == [[]] * 6
    assert document(out / "layers-2")["name"] == "test/run/layers-2"

    def lines(folder: Path) -> list[tuple[str, ...]]:
        """What is said of each checkpoint, and of the chain."""
        results = tmp_path / f"{folder.name}.jsonl"
        done = command(
            "--fixture", str(folder), "--device", "cpu", "--mode", "both", "--json", str(results)
        )
        assert done.returncode in (0, 8), done.stdout + done.stderr
        found = [json.loads(line) for line in results.read_text().splitlines()]
        return sorted(
            (one["checkpoint"], one["status"], json.dumps(one.get("outputs")))
            for one in found
            if "checkpoint" in one
        )

    assert lines(out) == lines(whole)


def test_parts_are_shown_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = recorded("tiny:llama", tmp_path / "x", "--effort none --no-internals --jobs 1")
    capsys.readouterr()
    assert cli.main(["show", str(out)]) == 0
    said = capsys.readouterr().out
    shown = [line for line in said.splitlines() if line.startswith("test/run/")]
    assert shown == [f"test/run/{name}" for name in names(out)]


def test_a_weight_is_stored_once(tmp_path: Path) -> None:
    whole = document(recorded("tiny:llama-a1", tmp_path / "whole"))
    out = recorded("tiny:llama-a1", tmp_path / "parts", "--jobs 1")
    stored = [
        entry["name"]
        for part in parts.complete(out)
        for entry in document(part)["tensors"].values()
        if entry.get("file") == "weights"
    ]
    assert sorted(stored) == sorted(
        entry["name"] for entry in whole["tensors"].values() if entry.get("file") == "weights"
    )


def test_weights_of_a_model_folder_are_referred_to(tmp_path: Path) -> None:
    tiny.build("llama", torch.bfloat16, seed=1).save_pretrained(tmp_path / "model")
    out = recorded(tmp_path / "model", tmp_path / "x", "--jobs 1")
    assert not list(out.glob("*/weights.safetensors"))
    assert all("model_files" in document(part) for part in parts.complete(out))


# What is in the way, and what is left of it.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--calls 9", "--calls 9, but the run has 3 forward calls (from 0)"),
        ("--chunks 2,3 --tokens 5 --calls 2-4", "--calls 4, but the run has 4 forward calls"),
        ("--jobs 0", "--jobs 0, expected at least 1"),
        ("--jobs 2 --weights w.safetensors", "--weights names a file next to one recording: drop"),
        ("--jobs 2 --device-map auto", "--device-map takes one process: drop --jobs"),
        ("--calls 0 --chained", "--chained goes from call to call: drop --calls"),
    ],
)
def test_usage_errors(
    words: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("record", "--model", "tiny:llama", "--steps", "2", "--out", str(tmp_path / "x"))
    assert expected in refused(capsys, 2, *given, *words.split())
    assert list(tmp_path.iterdir()) == []


SMALL = "--effort none --no-internals"


def test_parts_are_replaced_only_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = recorded("tiny:llama", tmp_path / "x", f"{SMALL} --jobs 1")
    before = files(out)
    text = "x has a recording already; --overwrite replaces it"
    for options in ("", " --jobs 1"):
        assert text in refused(capsys, 2, *words("tiny:gemma2", out, SMALL + options))
    given = words("tiny:gemma2", out, f"{SMALL} --overwrite")
    assert "x has a recording in parts; remove it, or give --jobs" in refused(capsys, 2, *given)
    assert files(out) == before
    recorded("tiny:gemma2", out, f"{SMALL} --jobs 1 --overwrite")
    assert names(out) == ["layers-0", "layers-1", "layers-2", "layers-3", "outside"]
    assert document(out / "outside")["provenance"]["model_type"] == "gemma2"
    assert names(tmp_path) == ["x"]


def test_a_folder_with_anything_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recordings"
    recorded("tiny:llama", out / "outside", SMALL)
    recorded("tiny:llama", out / "mine", SMALL)
    assert not is_of_parts(out)
    before = files(out)
    given = words("tiny:llama", out, f"{SMALL} --jobs 1 --overwrite")
    assert "recordings exists and is no recording; choose another folder" in refused(
        capsys, 3, *given
    )
    assert files(out) == before and names(tmp_path) == ["recordings"]


def test_what_cannot_be_recorded_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words("tiny:gemma2", tmp_path / "x", "--attn sdpa --jobs 1")
    assert "softcap" in refused(capsys, 3, *given)
    assert list(tmp_path.iterdir()) == []
