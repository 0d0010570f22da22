"""validate: the schema, and the corpus of good and bad recordings that the C++ reader shares."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from python_inspector.errors import FormatError
from python_inspector.format.block_table import BLOCKS
from python_inspector.format.recording import AXES, ITEM_SIZES, MODES
from python_inspector.format.show import show
from python_inspector.format.strict_json import load_json
from python_inspector.format.validate import (
    SCHEMA,
    find_recordings,
    json_findings,
    schema_findings,
    validate,
)

CORPUS = Path(__file__).parents[1] / "data" / "recordings"
FIXTURES = Path(__file__).parents[2] / "fixtures"
EXPECTED: dict[str, dict[str, str]] = json.loads((CORPUS / "expected.json").read_text())
SCHEMA_JSON: dict[str, Any] = json.loads(SCHEMA.read_text())


def test_the_schema_is_a_schema_and_knows_the_formats_words() -> None:
    Draft202012Validator.check_schema(SCHEMA_JSON)
    definitions = SCHEMA_JSON["$defs"]
    assert definitions["axes"]["items"]["enum"] == list(AXES)
    assert set(definitions["dtype"]["enum"]) == set(ITEM_SIZES)
    assert set(definitions["checkpoint"]["properties"]["block"]["enum"]) == {*BLOCKS, "module"}
    modes = definitions["provenance"]["properties"]["run"]["properties"]["mode"]["enum"]
    assert modes == list(MODES)


def test_the_harness_knows_the_formats_blocks(harness: Path) -> None:
    listed = subprocess.run(
        [harness, "list", "--blocks"], capture_output=True, text=True, check=True
    )
    blocks = listed.stdout.partition("\n\n")[0]  # suites follow
    assert {line.split()[0] for line in blocks.splitlines()} == set(BLOCKS)


def test_every_object_of_the_schema_says_what_else_it_takes() -> None:
    def objects(node: Any) -> list[dict[str, Any]]:
        if isinstance(node, list):
            return [found for item in node for found in objects(item)]
        if not isinstance(node, dict):
            return []
        own = [node] if "properties" in node and node.get("type") == "object" else []
        return own + [found for item in node.values() for found in objects(item)]

    found = objects(SCHEMA_JSON)
    assert len(found) > 10
    assert all("additionalProperties" in item for item in found)


@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.glob("good*")))
def test_good_recordings_pass(name: str) -> None:
    assert validate(CORPUS / name) == []


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_bad_recordings_are_refused_with_the_field(name: str) -> None:
    findings = validate(CORPUS / name)
    assert findings
    assert EXPECTED[name]["field"] in findings[0]
    assert name in findings[0], "the message names the file"


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_bad_recording_is_shown_or_refused(name: str) -> None:
    """Without files at hand, showing may not notice; it must never stumble."""
    try:
        show(CORPUS / name)
        show(CORPUS / name, ".")
    except FormatError as error:
        assert name in str(error)


def test_the_corpus_is_complete() -> None:
    assert {path.name for path in CORPUS.glob("bad-*")} == set(EXPECTED)


def test_the_corpus_is_what_its_generator_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = CORPUS.parent / "make_recordings.py"
    monkeypatch.syspath_prepend(path.parent)  # as for a script
    spec = importlib.util.spec_from_file_location("make_recordings", path)
    assert spec is not None and spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    monkeypatch.setattr(generator, "FOLDER", tmp_path / "recordings")
    generator.main()

    def tree(folder: Path) -> dict[str, bytes]:
        files = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    assert tree(tmp_path / "recordings") == tree(CORPUS)


# What cannot be stored in a repository.


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(CORPUS / "good", tmp_path / "good")
    return tmp_path / "good"


def test_a_symbolic_link_is_refused(copy: Path) -> None:
    (copy / "tensors.safetensors").rename(copy / "real")
    (copy / "tensors.safetensors").symlink_to("real")
    assert "symbolic link" in validate(copy)[0]


@pytest.mark.parametrize("name", ["tensors.safetensors", "recording.json"])
def test_a_fifo_is_refused_without_reading(copy: Path, name: str) -> None:
    (copy / name).unlink()
    os.mkfifo(copy / name)
    assert "no regular file" in validate(copy)[0]


def test_deep_nesting_is_refused(copy: Path) -> None:
    path = copy / "recording.json"
    for depth in (80, 100_000):
        text = '{"a":' * depth + "1" + "}" * depth
        path.write_text(text)
        findings = validate(copy)
        assert len(findings) == 1 and ("nested" in findings[0] or "recursion" in findings[0])


def test_a_missing_recording_is_an_error(tmp_path: Path) -> None:
    assert "missing" in validate(tmp_path)[0]
    with pytest.raises(FormatError, match=r"no recording\.json"):
        find_recordings(tmp_path)


def test_recordings_are_found_in_a_tree_but_not_hidden_ones(tmp_path: Path) -> None:
    for name in ("a/x", "b", ".b.partial-1"):
        shutil.copytree(CORPUS / "good", tmp_path / name)
    assert find_recordings(tmp_path) == [tmp_path / "a" / "x", tmp_path / "b"]
    assert find_recordings(tmp_path / "b" / "recording.json") == [tmp_path / "b"]


# The schema itself.


def good() -> dict[str, Any]:
    return load_json(CORPUS / "good" / "recording.json")


@pytest.mark.parametrize(
    "add",
    [
        lambda d: d["checkpoints"][0].update(direction="backward", quant={"group": 32}, shard={}),
        lambda d: d["checkpoints"][0].update(margins=[1.5], amplification=2.0),
        lambda d: d["checkpoints"][0]["outputs"]["out"].update(chained_delta="t0"),
        lambda d: d["checkpoints"][0]["params"].update(a={"b": [1, "inf", -2.5]}, c=None),
        lambda d: d["config"].update(anything={"at": ["all", None]}),
    ],
)
def test_reserved_and_free_fields_are_accepted(add: Callable[[dict[str, Any]], Any]) -> None:
    recording = good()
    add(recording)
    assert list(schema_findings(recording)) == []


@pytest.mark.parametrize("value", [0, None, "w0", "t", ["t0"]])
def test_a_payload_is_that_of_a_tensor_of_the_run(value: Any) -> None:
    recording = good()
    recording["tensors"]["t0"]["payload_of"] = value
    (finding,) = schema_findings(recording)
    assert finding.startswith("tensors.t0.payload_of: ")


def test_every_required_field_is_required() -> None:
    recording = good()
    checked = 0

    def visit(node: Any, path: str) -> None:
        nonlocal checked
        if isinstance(node, list):
            for item in node:
                visit(item, path)
        if not isinstance(node, dict) or path in ("notes", "config", "params"):
            return
        for key in list(node):
            optional = {"function", "valid", "generator", "weights", "traces"}
            named = path in ("contracts", "tensors", "inputs", "outputs", "weights", "parameters")
            if key not in optional and not named:
                value = node.pop(key)
                assert list(schema_findings(recording)), f"{path} without {key} passed"
                restored = {**node, key: value}
                node.clear()
                node.update(restored)
                checked += 1
            visit(node[key], key)

    visit(recording, "")
    assert checked > 60


def test_the_committed_recordings_are_valid() -> None:
    recordings = find_recordings(FIXTURES)
    assert len(recordings) > 30
    for path in recordings:
        assert validate(path) == []


@pytest.mark.parametrize("block", ["attention", "decoder_layer"])
def test_only_attention_without_rotary_has_no_table(block: str) -> None:
    recording = load_json(FIXTURES / "llama-a1/whole-f32/recording.json")
    checkpoint = next(c for c in recording["checkpoints"] if c["block"] == block)
    del checkpoint["inputs"]["cos"]
    assert "inputs: cos is missing" in json_findings(recording)[0]
    params = checkpoint["params"]
    params.get("attention", params)["rotary"] = False
    assert json_findings(recording) == []
