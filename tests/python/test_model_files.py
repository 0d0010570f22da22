"""Weights by reference: what a recording says of them, and what if they move or change."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import models
import numpy as np
import pytest
import torch
from recorded import asked, ids
from safetensors.torch import load_file, save_file

from python_inspector import record, tiny
from python_inspector.engines.weights import weights_of
from python_inspector.errors import FormatError
from python_inspector.format import model_files, safetensors_file, spool
from python_inspector.format.model_files import ModelFolder
from python_inspector.format.strict_json import load_json
from python_inspector.format.validate import validate

BLIND = 8
FAILED = re.compile(r"\d+ fail")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def recorded(tmp_path: Path, change=lambda model: None, **options) -> Path:
    """A recording that refers to the model's own file; `change` is done to the model in memory."""
    model = tiny.build("llama-a1", torch.bfloat16)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    change(model)
    with (
        record(model, *asked(tmp_path / "r", spread=2, model_folder=folder, **options)),
        torch.no_grad(),
    ):
        model(ids(model, 1, 9))
    return tmp_path / "r"


def verified(recording: Path, *options: str) -> tuple[int, str]:
    done = models.run("--fixture", str(recording), "--device", "cpu", *options)
    return done.returncode, done.stdout + done.stderr


def passes(code: int, said: str) -> bool:
    """Whether it was judged and nothing failed; a tiny model leaves some features blind."""
    return code in (0, BLIND) and bool(re.search(r"\d+ pass", said)) and not FAILED.search(said)


def test_weights_are_referred_to_and_not_copied(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    document = load_json(recording / "recording.json")
    assert "weights" not in document["files"]
    assert not (recording / "weights.safetensors").exists()
    assert document["model_files"]["folder"] == str(tmp_path / "model")
    weights = [entry for key, entry in document["tensors"].items() if key[0] == "w"]
    assert weights and all(entry["model_file"] == "model.safetensors" for entry in weights)
    assert validate(recording) == []
    code, said = verified(recording)
    assert passes(code, said), said


def test_engines_get_them_as_if_they_were_copied(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    for name, tensor in weights_of(recording).items():
        assert torch.equal(tensor, stored[name])


def test_a_weight_that_was_changed_in_memory_is_copied(tmp_path: Path) -> None:
    def change(model) -> None:
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[0, 0] += 1

    document = load_json(recorded(tmp_path, change) / "recording.json")
    copied = [e["name"] for e in document["tensors"].values() if e.get("file") == "weights"]
    assert copied == ["model.layers.0.mlp.up_proj.weight"]
    assert validate(tmp_path / "r") == []


def test_a_folder_that_moved_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = recorded(tmp_path)
    (tmp_path / "model").rename(tmp_path / "moved")
    code, said = verified(recording)
    assert code == 3 and str(tmp_path / "model") in said and "--weights FOLDER" in said
    (finding,) = validate(recording)
    assert str(tmp_path / "model") in finding and "PLUMB_WEIGHTS" in finding
    code, said = verified(recording, "--weights", str(tmp_path / "moved"))
    assert passes(code, said), said
    monkeypatch.setenv("PLUMB_WEIGHTS", str(tmp_path / "moved"))
    assert validate(recording) == []


def test_a_file_that_was_changed_is_told(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    save_file(tensors, file, metadata={"format": "pt"})
    code, said = verified(recording)
    assert code == 3 and "SHA-256" in said, said
    assert any("sha256" in finding for finding in validate(recording))


def test_files_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path)
    name = "model.norm.weight"
    tensor = load_file(tmp_path / "model" / "model.safetensors")[name]
    hashed = []
    real = safetensors_file.SafetensorsFile.sha256

    def count(self, name: str) -> str:
        hashed.append(name)
        return real(self, name)

    monkeypatch.setattr(safetensors_file.SafetensorsFile, "sha256", count)
    find = ModelFolder(tmp_path / "model").finder(name, tensor)
    assert find is not None
    digest = next(
        entry["sha256"]
        for entry in load_json(tmp_path / "r" / "recording.json")["tensors"].values()
        if entry.get("name") == name
    )
    assert find(digest) == "model.safetensors" and hashed == []
    os.utime(tmp_path / "model" / "model.safetensors")
    find = ModelFolder(tmp_path / "model").finder(name, tensor)
    assert find is not None and find(digest) == "model.safetensors" and hashed == [name]
    assert find("0" * 64) is None


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no weights to refer to"):
        ModelFolder(tmp_path)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is written by threads, every file keeps its payloads in place."""
    monkeypatch.setattr(spool, "BESIDE", 1)
    monkeypatch.setattr(spool, "IN_PLACE", 1)
    monkeypatch.setattr(spool, "HEADER_ROOM", 1 << 16)


def test_a_large_recording_is_as_a_small_one(large: None, tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    document = load_json(recording / "recording.json")
    assert document["files"]["tensors"].keys() == {"path", "bytes", "header_sha256"}
    assert validate(recording) == []
    code, said = verified(recording)
    assert passes(code, said), said
    spool.BESIDE = spool.IN_PLACE = 1 << 40
    small = load_json(recorded(tmp_path / "small") / "recording.json")
    spool.BESIDE = spool.IN_PLACE = 1

    def known(document) -> list:
        """Checkpoints with hashes in place of keys."""
        table = document["tensors"]

        def named(value):
            if isinstance(value, str) and value in table:
                return table[value]["sha256"]
            if isinstance(value, dict):
                return {key: named(item) for key, item in value.items()}
            return [named(item) for item in value] if isinstance(value, list) else value

        return named(document["checkpoints"])

    assert known(document) == known(small)


@pytest.mark.parametrize("where", ["header", "payload"])
def test_a_large_file_that_was_changed_is_told(large: None, where: str, tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    file = recording / "tensors.safetensors"
    data = bytearray(file.read_bytes())
    at = (1 << 16) - 1 if where == "header" else len(data) - 100
    data[at] ^= 0x29 if where == "header" else 0x41  # a space that becomes a tab
    file.write_bytes(data)
    assert any("SHA-256" in text or "sha256" in text for text in validate(recording))
    if where == "payload":
        code, said = verified(recording)
        assert code == 3 and "SHA-256" in said, said


def test_what_goes_wrong_beside_the_run_is_raised(
    large: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        recorded(tmp_path)
    assert not (tmp_path / "r").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".r")] == []


def test_no_more_waits_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    room = spool._Room(10)
    room.take(8)
    given = []

    def later() -> None:
        given.append(True)
        room.give(8)

    threading.Timer(0.05, later).start()
    room.take(9)
    assert given, "waited for room"


def test_a_reference_names_no_other_folder(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    text = (recording / "recording.json").read_text()
    (recording / "recording.json").write_text(
        text.replace('"model.safetensors"', '"../model/model.safetensors"')
    )
    code, said = verified(recording)
    assert code == 3 and "plain file name" in said, said
    assert any("model_files" in finding for finding in validate(recording))


assert model_files.MODEL_FILE == "model:"  # as harness/recording/recording_header.h has it


def test_weights_in_16_bits_are_float32_for_numpy() -> None:
    wide, own = (weights_of("llama-a1/decode-bf16", arrays) for arrays in ("numpy", "torch"))
    assert wide.keys() == own.keys() and own
    for name, array in wide.items():
        assert array.dtype == np.float32
        assert torch.equal(torch.from_numpy(array), own[name].float())
        array += 1  # a copy of its own
