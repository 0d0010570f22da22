"""validate: the schema, the harness's reader, and that the one refuses what the other does."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from python_inspector.cli.inspector import main
from python_inspector.errors import FormatError
from python_inspector.format import validate as validation
from python_inspector.format.blocks import BLOCKS
from python_inspector.format.model_files import open_files
from python_inspector.format.recording import AXES, CODES, ITEM_SIZES, MODES
from python_inspector.format.safetensors_file import read_header
from python_inspector.format.show import show
from python_inspector.format.strict_json import load_json
from python_inspector.format.validate import (
    SCHEMA,
    find_recordings,
    schema_findings,
    unchecked,
    validate,
)

CORPUS = Path(__file__).parents[1] / "data" / "recordings"
FIXTURES = Path(__file__).parents[2] / "fixtures"
EXPECTED: dict[str, dict[str, str]] = json.loads((CORPUS / "expected.json").read_text())
SCHEMA_JSON: dict[str, Any] = json.loads(SCHEMA.read_text())


@pytest.fixture
def reader() -> None:
    """The harness's."""
    if reason := unchecked():
        pytest.skip(reason)


def test_the_schema_is_a_schema_and_knows_the_formats_words() -> None:
    Draft202012Validator.check_schema(SCHEMA_JSON)
    definitions = SCHEMA_JSON["$defs"]
    assert definitions["axes"]["items"]["enum"] == list(AXES)
    assert set(definitions["tensor_dtype"]["enum"]) == set(ITEM_SIZES)
    assert set(definitions["dtype"]["enum"]) == set(ITEM_SIZES) - set(CODES)
    assert set(definitions["block"]["enum"]) == {*BLOCKS, "module", "op"}
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
def test_good_recordings_pass(reader: None, name: str) -> None:
    assert validate(CORPUS / name) == []


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_bad_recordings_are_refused_with_the_field(reader: None, name: str) -> None:
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


# What Python reads by itself.


@pytest.mark.parametrize("path", sorted(CORPUS.glob("bad-json-*/recording.json")))
def test_json_that_is_guesswork_is_refused(path: Path) -> None:
    with pytest.raises(FormatError, match=path.parent.name):
        load_json(path)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("bad-*/tensors.safetensors")))
def test_a_damaged_file_is_refused(path: Path) -> None:
    if path.parent.name in ("bad-payload-bit-flip", "bad-dtype-other"):
        assert read_header(path).tensors  # what the hash and the table tell
    else:
        with pytest.raises(FormatError, match=path.parent.name):
            read_header(path)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("bad-payload-of-*/recording.json")))
def test_a_payload_of_another_tensor_fits_it(path: Path) -> None:
    recording, read_later = load_json(path), path.parent.name == "bad-payload-of-one-not-there"
    if next(schema_findings(recording), None) is None and not read_later:
        with pytest.raises(FormatError, match=EXPECTED[path.parent.name]["field"]):
            open_files(path.parent, recording)


def test_a_fifo_is_refused_without_reading(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for reader in (load_json, read_header):
        with pytest.raises(FormatError, match="no regular file"):
            reader(tmp_path / "fifo")


@pytest.mark.parametrize("depth", [80, 100_000])
def test_deep_nesting_is_refused(tmp_path: Path, depth: int) -> None:
    (tmp_path / "deep").write_text('{"a":' * depth + "1" + "}" * depth)
    with pytest.raises(FormatError, match=r"nested|recursion"):
        load_json(tmp_path / "deep")


def test_a_missing_recording_is_an_error(reader: None, tmp_path: Path) -> None:
    assert "No such file" in validate(tmp_path)[0]
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


def test_the_committed_recordings_are_valid(reader: None) -> None:
    recordings = find_recordings(FIXTURES)
    assert len(recordings) > 30
    for path in recordings:
        assert validate(path) == []


# Names and axes of blocks, against fixtures/schema/blocks.json.


def edited(tmp_path: Path, change: Callable[[dict[str, Any]], Any], block: str) -> list[str]:
    """What is found in a recording of LLaMA once its first checkpoint of a block is changed."""
    recording = load_json(FIXTURES / "llama-a1/whole-f32/recording.json")
    change(next(c for c in recording["checkpoints"] if c["block"] == block))
    folder = tmp_path / "llama-a1" / "whole-f32"
    if not folder.exists():
        shutil.copytree(FIXTURES / "llama-a1/whole-f32", folder)
        for weights in (FIXTURES / "llama-a1").glob("*.safetensors"):
            shutil.copy(weights, folder.parent)
    (folder / "recording.json").write_text(json.dumps(recording))
    return validate(folder)


@pytest.mark.parametrize(
    ("block", "change", "word"),
    [
        ("linear", lambda c: c["weights"].clear(), "weights: weight is missing"),
        ("glu_mlp", lambda c: c["params"].update(odd=1), 'params: "odd" is not one of a glu_mlp'),
        ("sdpa", lambda c: c["inputs"]["q"]["axes"].reverse(), "inputs.q: axes are head_dim token"),
        ("sdpa", lambda c: c["outputs"].update(y=c["outputs"]["out"]), 'outputs: "y" is not one'),
        ("decoder_layer", lambda c: c["params"]["norm"].pop("eps"), "params.norm: eps is missing"),
        ("attention", lambda c: c["inputs"].pop("cos"), "inputs: cos is missing"),
        ("decoder_layer", lambda c: c["inputs"].pop("sin"), "inputs: sin is missing"),
    ],
)
def test_a_block_has_its_names(
    tmp_path: Path, reader: None, block: str, change: Callable[[dict[str, Any]], Any], word: str
) -> None:
    (finding,) = edited(tmp_path, change, block)
    assert word in finding


@pytest.mark.parametrize("block", ["attention", "decoder_layer"])
def test_attention_that_does_not_rotate_has_no_table(tmp_path: Path, block: str) -> None:
    def change(checkpoint: dict[str, Any]) -> None:
        del checkpoint["inputs"]["cos"], checkpoint["inputs"]["sin"]
        params = checkpoint["params"]
        params.get("attention", params)["rotary"] = False

    assert edited(tmp_path, change, block) == []


# The schema and the reader.

OTHERS: tuple[Any, ...] = (
    None, True, -1, 1.5, 2**40, "", "odd", "nan", [], ["odd"], {"odd": 1},
)  # fmt: skip
"""What a value is replaced by: most of these are wrong in most places."""
SOURCES = {"good-simulated": (), "good-sampled": ("tensors", "checkpoints"),
           "good-same-bytes": ("tensors",)}  # fmt: skip
"""Recordings that together have all there is to change, and the parts that only they have."""


def changes_of(recording: Any, parts: Collection[str]) -> Iterator[str]:
    """Makes one change after the other, undone before the next: one of each kind of place."""
    seen: set[str] = set()

    def is_new(path: str, value: Any) -> bool:
        fields = ",".join(value) if isinstance(value, dict) else ""
        kind = re.sub(r"\d+|(?<=spread\.)(?!runs)[a-z ]+", "*", path) + fields
        return kind not in seen and not seen.add(kind)  # type: ignore[func-returns-value]

    def changed(holder: Any, key: Any, path: str) -> Iterator[str]:
        value = holder[key]
        for other in OTHERS:
            if other != value or type(other) is not type(value):
                holder[key] = other
                yield f"{path} = {other!r}"
        holder[key] = value
        if isinstance(holder, dict):
            order = dict(holder)
            del holder[key]
            yield f"{path} removed"
            holder.clear()
            holder.update(order)

    def visit(holder: Any, path: str) -> Iterator[str]:
        if isinstance(holder, dict):
            holder["odd"] = 1
            yield f"{path}.odd added"
            del holder["odd"]
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            place = f"{path}.{key}"
            if not is_new(place, holder[key]):
                continue
            yield from changed(holder, key, place)
            if isinstance(holder[key], (dict, list)):
                yield from visit(holder[key], place)

    for part in parts or [""]:
        yield from visit(recording[part] if part else recording, part)


def add_optional_fields(recording: dict[str, Any], file: Path) -> None:
    """To the recording with simulated kernels; `file`: one that it may refer to."""
    files = {file.name: {"bytes": file.stat().st_size}}
    recording["model_files"] = {"folder": str(file.parent), "files": files}
    recording["contracts"]["eager"]["inside"] = ["sums-16"]
    norm, add = recording["checkpoints"]
    del norm["outputs"]["out"]["truncated"]  # it is as the spread
    add["trace"] = norm["trace"]
    norm["bugs"] = [
        {"name": "b", "kind": "k", "output": "out", "margin": 1, "at": "t4", "values": "t13"}
    ]
    norm["amplification"] = 1.0
    norm["outputs"]["out"] |= {
        "labels": ["a", "b", "c"], "left_out": 1, "unstable": 1e-3, "chained_delta": None,
        "members": [{"name": "m", "values": "t2", "bits": [0, 0, 0]}],
    }  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_the_reader_refuses_what_the_schema_does(tmp_path: Path, reader: None, name: str) -> None:
    for path in CORPUS.glob("*.safetensors"):
        shutil.copy(path, tmp_path)
    folder = tmp_path / name
    shutil.copytree(CORPUS / name, folder)
    written = folder / "recording.json"
    recording = load_json(written)
    if name == "good-simulated":
        add_optional_fields(recording, tmp_path / "rows.safetensors")
    written.write_text(json.dumps(recording))
    assert validate(folder) == []
    refused, accepted = 0, []
    for change in changes_of(recording, SOURCES[name]):
        if next(schema_findings(recording), None) is not None:
            written.write_text(json.dumps(recording))
            refused += 1
            accepted += [] if validate(folder) else [change]
    assert not accepted
    assert refused > 100


def test_without_the_reader_the_schema_alone_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(validation, "library_of", lambda: None)
    assert "libplumbline_judge.so" in unchecked()
    assert validate(CORPUS / "bad-error-wrong") == []
    assert "step" in validate(CORPUS / "bad-step-text")[0]
    assert "twice" in validate(CORPUS / "bad-json-duplicate-key")[0]
    assert main(["validate", str(CORPUS / "bad-error-wrong")]) == 0
    assert "hashes and stated errors are not checked" in capsys.readouterr().err
