"""Writes tests/data/recordings: one good recording, and one folder for each way to be bad.

    python tests/data/make_recordings.py

Both readers are tested on these files: each must accept `good*` and reject `bad-*` with a message
that holds the word in expected.json. A bad recording has exactly one fault: where a safetensors
file is damaged, size and SHA-256 in recording.json are those of the damaged file.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from changes import Json, at, drop, put
from good_recordings import (
    HIDDEN,
    write_good,
    write_sampled,
    write_simulated,
    write_small,
)
from same_bytes import SAME_BYTES, write_same_bytes

from python_inspector.format.recording_text import recording_text

FOLDER = Path(__file__).parent / "recordings"
TENSORS = "tensors.safetensors"
WEIGHTS = "weights.safetensors"
ROWS = "rows.safetensors"
SAMPLES = "samples.safetensors"
SHAPES = "shapes.safetensors"


NORM = ("checkpoints", 0)
CHAINED = (*NORM, "outputs", "out", "chained_delta")


def chain_of_a_layer(document: Json) -> None:
    """A norm inside a layer is no part of a chain."""
    norm = at(*NORM)(document)
    norm.update(path="layers.0.m", id="layers.0.m#0")
    put(*CHAINED, value=None)(document)


def of_version_3(*path: str | int, value: Any) -> Callable[[Json], None]:
    """What goes with gradients alone, in a recording that may have some."""

    def change(document: Json) -> None:
        document["version"] = 3
        put(*path, value=value)(document)

    return change


def in_version_1(*path: str | int, value: Any) -> Callable[[Json], None]:
    """What version 2 has, in a recording that is otherwise of version 1."""

    def change(document: Json) -> None:
        document["version"] = 1
        document.pop("traces", None)
        put(*path, value=value)(document)

    return change


# name, word that the message must hold, what to do to the parsed recording.json
DOCUMENTS: list[tuple[str, str, Callable[[Json], Any]]] = [
    ("format-other", "format", put("format", value="safetensors")),
    ("version-0", "version", put("version", value=0)),
    ("version-4", "version", put("version", value=4)),
    ("version-float", "version", put("version", value=1.0)),
    ("version-text", "version", put("version", value="1")),
    ("no-provenance", "provenance", drop("provenance")),
    ("no-mode", "mode", drop("provenance", "run", "mode")),
    ("mode-unknown", "mode", put("provenance", "run", "mode", value="prefill")),
    ("unknown-top-field", "comment", put("comment", value="hello")),
    ("unknown-checkpoint-field", "colour", put(*NORM, "colour", value="red")),
    ("unknown-output-field", "scale", put(*NORM, "outputs", "out", "scale", value=1)),
    ("config-list", "config", put("config", value=[])),
    ("chained-unknown-key", "chained_delta", put(*CHAINED, value="t99")),
    ("chained-wrong-dtype", "chained_delta", put(*CHAINED, value="t0")),
    ("chained-number", "chained_delta", put(*CHAINED, value=1)),
    ("chained-elsewhere", "chained_delta", chain_of_a_layer),
    ("amplification-negative", "amplification", put(*NORM, "amplification", value=-1)),
    ("amplification-alone", "amplification", put(*NORM, "amplification", value=1.5)),
    ("no-contract", "contract", drop(*NORM, "contract")),
    ("contract-undeclared", "fused", put(*NORM, "contract", value="fused")),
    ("contract-points", "points", put("contracts", "eager", "points", value="sometimes")),
    ("contract-storage", "storage", put("contracts", "eager", "storage", value="bfloat16")),
    ("block-unknown", "block", put(*NORM, "block", value="norm")),
    ("block-missing-input", "x", drop(*NORM, "inputs", "x")),
    ("block-missing-param", "eps", drop(*NORM, "params", "eps")),
    ("block-other-param", "colour", put(*NORM, "params", "colour", value=1)),
    ("block-other-input", "mask",
     lambda d: at(*NORM, "inputs")(d).update(mask=at(*NORM, "inputs", "x")(d))),
    ("block-missing-weight", "weight", drop(*NORM, "weights", "weight")),
    ("id-mismatch", "id", put(*NORM, "id", value="m#1")),
    ("id-duplicate", "m#0", lambda d: d["checkpoints"].append(d["checkpoints"][0])),
    ("call-negative", "call", put(*NORM, "call", value=-1)),
    ("call-float", "call", put(*NORM, "call", value=0.0)),
    ("step-text", "step", put(*NORM, "step", value="0")),
    ("axis-unknown", "axes", put(*NORM, "inputs", "x", "axes", value=["batch", "time", "channel"])),
    ("axes-count", "axes", put(*NORM, "inputs", "x", "axes", value=["token", "channel"])),
    ("axis-twice", "token", put(*NORM, "inputs", "x", "axes", value=["token", "token", "channel"])),
    ("tensor-key-unknown", "t9", put(*NORM, "inputs", "x", "tensor", value="t9")),
    ("tensor-key-odd", "x0", put(*NORM, "inputs", "x", "tensor", value="x0")),
    ("weight-key-unknown", "w9", put(*NORM, "weights", "weight", value="w9")),
    ("delta-key-unknown", "t9", put(*NORM, "outputs", "out", "delta", value="t9")),
    ("delta-wrong-dtype", "delta", put(*NORM, "outputs", "out", "delta", value="t0")),
    ("delta-missing", "delta", drop(*NORM, "outputs", "out", "delta")),
    ("delta-null-with-error", "error", put(*NORM, "outputs", "out", "delta", value=None)),
    ("error-wrong", "error", put(*NORM, "outputs", "out", "error", value=1e-3)),
    ("error-negative", "error", put(*NORM, "outputs", "out", "error", value=-1.0)),
    ("no-outputs", "outputs", put(*NORM, "outputs", value={})),
    ("valid-not-bool", "valid",
     put(*NORM, "outputs", "out", "valid", value={"tensor": "t2", "axes": list(HIDDEN)})),
    ("valid-axis", "valid", put(*NORM, "outputs", "out", "valid", "axes", value=["batch", "head"])),
    ("param-list-of-text", "params", put(*NORM, "params", "eps", value=["a"])),
    ("table-dtype", "dtype", put("tensors", "t0", "dtype", value="bfloat16")),
    ("table-dtype-differs", "t0", put("tensors", "t0", "dtype", value="f16")),
    ("table-shape-differs", "t0", put("tensors", "t0", "shape", value=[1, 8, 3])),
    ("table-shape-negative", "shape", put("tensors", "t0", "shape", value=[1, -3, -8])),
    ("table-shape-huge", "shape", put("tensors", "t0", "shape", value=[2**62, 2**62, 8])),
    ("table-rank-9", "shape", put("tensors", "t0", "shape", value=[1] * 7 + [3, 8])),
    ("table-sha", "sha256", put("tensors", "t0", "sha256", value="0" * 64)),
    ("table-sha-short", "sha256", put("tensors", "t0", "sha256", value="00")),
    ("table-file-unknown", "file", put("tensors", "t0", "file", value="other")),
    ("table-not-in-file", "t7", lambda d: d["tensors"].update(t7=d["tensors"]["t0"])),
    ("weight-without-name", "name", drop("tensors", "w0", "name")),
    ("weight-name-differs", "w0", put("tensors", "w0", "name", value="other.weight")),
    ("weight-name-twice", "name", lambda d: d["tensors"].update(w1=d["tensors"]["w0"])),
    ("backward-in-version-2", "block", put(*NORM, "block", value="rms_norm.backward")),
    ("remarks-beside-forward", "remarks", of_version_3(*NORM, "remarks", value=[])),
    ("bugs-in-version-1", "version", in_version_1(*NORM, "bugs", value=[])),
    ("labels-in-version-1", "version", in_version_1(*NORM, "outputs", "out", "labels", value=[])),
    ("spread-in-version-1", "version", in_version_1("provenance", "run", "spread", value=8)),
    ("network-shape", "shape",
     put("network", 0, "parameters", "weight", "shape", value=[9])),
    ("file-sha", "sha256", put("files", "tensors", "sha256", value="f" * 64)),
    ("file-bytes", "bytes", put("files", "tensors", "bytes", value=1)),
    ("file-missing", "path", put("files", "tensors", "path", value="nowhere.safetensors")),
    ("path-two-up", "path", put("files", "tensors", "path", value="../../tensors.safetensors")),
    ("path-absolute", "path", put("files", "tensors", "path", value="/etc/passwd")),
    ("path-below", "path", put("files", "tensors", "path", value="sub/tensors.safetensors")),
    ("path-nul", "path", put("files", "tensors", "path", value="tensors.safetensors\0x")),
    ("path-parent", "path", put("files", "tensors", "path", value="..")),
    ("path-folder", "path", put("files", "tensors", "path", value="../good")),
    ("weights-not-listed", "weights", drop("files", "weights")),
    ("created", "created", put("provenance", "created", value="yesterday")),
]  # fmt: skip

OUT = (*NORM, "outputs", "out")
RULE = ("tensors", "t0", "generator")

# the same for the recording with generated tensors and a sampled output: t0 is x, t1 the rows of r,
# t2 of delta, t3 the tokens, t4 and t5 sketches, t6 the sizes of rows, t7 tokens out of order
SAMPLED: list[tuple[str, str, Callable[[Json], Any]]] = [
    ("generator-kind", "generator", put(*RULE, "kind", value="mersenne")),
    ("generator-seed-negative", "generator", put(*RULE, "seed", value=-1)),
    ("generator-seed-other", "sha256", put(*RULE, "seed", value=3)),
    ("generator-exponent", "generator", put(*RULE, "exponent", value=-41)),
    ("generator-offset", "generator", put(*RULE, "offset", value=2)),
    ("generator-unknown-field", "generator", put(*RULE, "scale", value=1)),
    ("generator-dtype", "generator", put("tensors", "t0", "dtype", value="f64")),
    ("generator-too-large", "generator",
     put("tensors", "t0", "shape", value=[1 << 20, 1 << 12, 8])),
    ("generator-beside-file", "t0", put("tensors", "t0", "file", value="tensors")),
    ("generator-beside-model-file", "model_file", put("tensors", "w0", "model_file", value="x")),
    ("rows-without-sketch", "sketch", drop(*OUT, "sketch")),
    ("sketch-without-rows", "rows", drop(*OUT, "rows")),
    ("rows-not-integers", "rows", put(*OUT, "rows", "tensor", value="t6")),
    ("rows-key-unknown", "t99", put(*OUT, "rows", "tensor", value="t99")),
    ("rows-of-fewer", "rows.of", put(*OUT, "rows", "of", value=1)),
    ("rows-of-other", "sketch", put(*OUT, "rows", "of", value=6)),
    ("rows-of-huge", "of", put(*OUT, "rows", "of", value=1 << 40)),
    ("rows-descending", "rows", put(*OUT, "rows", "tensor", value="t7")),
    ("rows-without-token", "rows", put(*OUT, "axes", value=["batch", "head", "channel"])),
    ("rows-beside-valid", "valid",
     put(*OUT, "valid", value={"tensor": "t0", "axes": list(HIDDEN)})),
    ("sketch-shape", "sketch.oracle", put(*OUT, "sketch", "oracle", value="t6")),
    ("sketch-rms-shape", "sketch.rms", put(*OUT, "sketch", "rms", value="t5")),
    ("sketch-unknown-field", "sketch", put(*OUT, "sketch", "seed", value=1)),
]  # fmt: skip

SPREAD = (*OUT, "spread")
MODEL = (*OUT, "model")
FULL = ("checkpoints", 1, "outputs", "out")

# the same for the recording with simulated kernels: t4 are the positions of the model, t5 its
# values; t8 descend, t9 are out of range, t10 is one, t11 begins negative, t12 has two dimensions,
# t13 are two float32.
# The second checkpoint is an add in f32.
SIMULATED: list[tuple[str, str, Callable[[Json], Any]]] = [
    ("simulated-in-version-1", "version", put("version", value=1)),
    ("traces-list", "traces", put("traces", value=[])),
    ("traces-key-odd", "x0", lambda d: d["traces"].update(x0=d["traces"]["p0"])),
    ("trace-key-unknown", "p9", put(*NORM, "trace", value="p9")),
    ("trace-not-text", "trace", put(*NORM, "trace", value=0)),
    ("trace-without-operations", "operations", drop("traces", "p0", "operations")),
    ("trace-operation-unknown-field", "flops",
     put("traces", "p0", "operations", 0, "flops", value=1)),
    ("trace-without-op", "op", drop("traces", "p0", "operations", 0, "op")),
    ("trace-stores-unknown", "stores", put("traces", "p0", "operations", 0, "stores", value="i64")),
    ("trace-terms-one", "terms", put("traces", "p0", "operations", 0, "terms", value=1)),
    ("trace-terms-float", "terms", put("traces", "p0", "operations", 0, "terms", value=8.0)),
    ("trace-fed-number", "fed", put("traces", "p0", "operations", 0, "fed", value=0)),
    ("trace-fed-without-terms", "fed",
     put("traces", "p0", "operations", 1, "fed", value=False)),
    ("output-trace-unknown", "p9", put(*OUT, "trace", value="p9")),
    ("output-trace-alone", "trace",
     lambda d: (put(*OUT, "trace", value="p0")(d), drop(*NORM, "trace")(d))),
    ("model-at-unknown", "t99", put(*MODEL, "at", value="t99")),
    ("model-values-unknown", "t99", put(*MODEL, "values", value="t99")),
    ("model-without-at", "at", drop(*MODEL, "at")),
    ("model-unknown-field", "seed", put(*MODEL, "seed", value=1)),
    ("model-text", "model", put(*MODEL, value="t4")),
    ("model-at-not-integers", "model.at", put(*MODEL, "at", value="t5")),
    ("model-at-two-dimensions", "model.at", put(*MODEL, "at", value="t12")),
    ("model-values-dtype", "model.values", put(*MODEL, "values", value="t4")),
    ("model-lengths-differ", "model.values", put(*MODEL, "at", value="t10")),
    ("model-at-descending", "ascending", put(*MODEL, "at", value="t8")),
    ("model-at-out-of-range", "24", put(*MODEL, "at", value="t9")),
    ("model-at-negative", "-1", put(*MODEL, "at", value="t11")),
    ("model-beside-f32", "model", put(*FULL, "model", value=None)),
    ("truncated-beside-f32", "truncated",
     lambda d: at(*FULL)(d).update(truncated=at(*FULL)(d)["spread"])),
    ("spread-without-runs", "runs", drop(*SPREAD, "runs")),
    ("spread-runs-zero", "runs", put(*SPREAD, "runs", value=0)),
    ("spread-runs-many", "runs", put(*SPREAD, "runs", value=(1 << 16) + 1)),
    ("spread-unknown-statistic", "head", put(*SPREAD, "head", value=[0, 0, 0])),
    ("spread-other-family", "token x head", put(*SPREAD, "token x head", value=[0, 0, 0])),
    ("spread-without-tensor", "tensor", drop(*SPREAD, "tensor")),
    ("spread-without-family", "channel", drop(*SPREAD, "channel")),
    ("spread-without-bits", "bits", drop(*SPREAD, "bits")),
    ("spread-bits-beside-f32", "bits", put(*FULL, "spread", "bits", value=[0, 0, 0])),
    ("spread-sketch-beside-all-rows", "sketch", put(*SPREAD, "sketch", value=[0, 0, 0])),
    ("spread-negative", "gain", put(*SPREAD, "gain", 1, value=-1e-3)),
    ("spread-minus-infinity", "gain", put(*SPREAD, "gain", 1, value="-inf")),
    ("spread-two-figures", "tile", put(*SPREAD, "tile", value=[0, 0])),
    ("spread-text", "tile", put(*SPREAD, "tile", 0, value="small")),
    ("truncated-negative", "truncated", put(*OUT, "truncated", "tensor", 0, value=-1.0)),
    ("unstable-negative", "unstable", put(*OUT, "unstable", value=-1e-3)),
    ("unstable-zero", "unstable", put(*OUT, "unstable", value=0)),
    ("unstable-null", "unstable", put(*OUT, "unstable", value=None)),
    ("run-spread-negative", "spread", put("provenance", "run", "spread", value=-1)),
]  # fmt: skip

MEMBER = {"name": "rounds once, at the output", "values": "t2", "bits": [0, 0, 0]}
BUG = {
    "name": "mul #1 x 1.01", "kind": "constant", "output": "out", "margin": 3.5,
    "at": "t4", "values": "t13",
}  # fmt: skip


def member(**changes: Any) -> Callable[[Json], None]:
    return put(*OUT, "members", value=[MEMBER | changes])


def bug(**changes: Any) -> Callable[[Json], None]:
    return put(*NORM, "bugs", value=[BUG | changes])


# the same: other rounding points, choices and planted bugs. t2 is the norm's output.
ALTERNATIVES: list[tuple[str, str, Callable[[Json], Any]]] = [
    ("members-beside-f32", "members", put(*FULL, "members", value=[])),
    ("members-object", "members", put(*OUT, "members", value=MEMBER)),
    ("members-values-unknown", "t99", member(values="t99")),
    ("members-values-shape", "values", member(values="t5")),
    ("members-unknown-field", "seed", member(seed=1)),
    ("members-two-figures", "bits", member(bits=[0, 0])),
    ("members-name-empty", "name", member(name="")),
    ("members-name-twice", "name", put(*OUT, "members", value=[MEMBER, MEMBER])),
    ("labels-too-few", "labels", put(*OUT, "labels", value=["row"])),
    ("labels-too-long", "labels", put(*OUT, "labels", value=["a" * 65, "b", "c"])),
    ("undecidable-beside-floats", "undecidable", put(*OUT, "undecidable", value="t3")),
    ("ill-conditioned-not-bool", "ill_conditioned", put(*OUT, "ill_conditioned", value="t3")),
    ("legal-without-undecidable", "legal",
     put(*OUT, "legal", value={"at": "t4", "values": "t4"})),
    ("bugs-object", "bugs", put(*NORM, "bugs", value=BUG)),
    ("bugs-output-unknown", "other", bug(output="other")),
    ("bugs-margin-negative", "margin", bug(margin=-1)),
    ("bugs-margin-text", "margin", bug(margin="large")),
    ("bugs-margin-infinite", "margin", bug(margin="inf")),
    ("bugs-unknown-field", "seed", bug(seed=1)),
    ("bugs-without-values", "values",
     lambda d: (bug()(d), drop(*NORM, "bugs", 0, "values")(d))),
    ("bugs-at-out-of-range", "24", bug(at="t9")),
    ("bugs-at-not-integers", "at", bug(at="t5")),
    ("bugs-values-dtype", "values", bug(values="t5")),
]  # fmt: skip

# name, word, what to do to the bytes of recording.json
TEXTS: list[tuple[str, str, Callable[[bytes], bytes]]] = [
    ("json-empty", "JSON", lambda text: b""),
    ("json-truncated", "JSON", lambda text: text[:-40]),
    ("json-trailing", "JSON", lambda text: text + b"{}"),
    ("json-nul", "JSON", lambda text: text + b"\0"),
    ("json-bom", "JSON", lambda text: b"\xef\xbb\xbf" + text),
    ("json-not-utf8", "JSON", lambda text: text.replace(b"TestModel", b"Test\xffodel")),
    ("json-surrogate", "JSON", lambda text: text.replace(b"TestModel", b"Test\\ud800")),
    ("json-comment", "JSON", lambda text: text.replace(b'"config"', b'/* c */ "config"')),
    ("json-nan", "JSON", lambda text: text.replace(b'"eps":1e-05', b'"eps":NaN')),
    ("json-infinity", "JSON", lambda text: text.replace(b'"eps":1e-05', b'"eps":Infinity')),
    ("json-overflow", "JSON", lambda text: text.replace(b'"eps":1e-05', b'"eps":1e400')),
    ("json-big-integer", "JSON", lambda text: text.replace(b'"seed":3', b'"seed":1' + b"0" * 30)),
    ("json-duplicate-key", "twice",
     lambda text: text.replace(b'"version": 2', b'"version": 2, "version": 2')),
    ("json-array", "object", lambda text: b"[" + text + b"]"),
    ("json-deep", "", lambda text: text.replace(
        b'"config": {}', b'"config": ' + b'{"a":' * 200 + b"1" + b"}" * 200)),
]  # fmt: skip


def header_change(change: Callable[[Json], Any]) -> Callable[[bytes], bytes]:
    """A damage of a safetensors file's JSON header; length and padding follow."""

    def damage(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        change(header)
        return _with_header(json.dumps(header).encode(), data[8 + length :])

    return damage


def _with_header(text: bytes, payload: bytes) -> bytes:
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + payload


def shift(tensor: str, begin: int, end: int) -> Callable[[bytes], bytes]:
    """Moves a tensor's data_offsets."""

    def change(header: Json) -> None:
        offsets = header[tensor]["data_offsets"]
        offsets[0], offsets[1] = offsets[0] + begin, offsets[1] + end

    return header_change(change)


def _length(value: int) -> Callable[[bytes], bytes]:
    return lambda data: value.to_bytes(8, "little") + data[8:]


def _flip(position: int) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[position] ^= 1
        return bytes(changed)

    return damage


# name, word, damage to tensors.safetensors; size and SHA-256 of the file are made to fit
FILES: list[tuple[str, str, Callable[[bytes], bytes]]] = [
    ("file-empty", TENSORS, lambda data: b""),
    ("file-seven-bytes", TENSORS, lambda data: data[:7]),
    ("header-length-zero", TENSORS, _length(0)),
    ("header-length-past-end", TENSORS, _length(1 << 20)),
    ("header-length-2-63", TENSORS, _length(1 << 63)),
    ("header-length-2-64", TENSORS, _length((1 << 64) - 1)),
    ("header-length-wraps", TENSORS, _length((1 << 64) - 8)),
    ("header-not-json", TENSORS, lambda data: data[:8] + b"[" + data[9:]),
    ("header-not-utf8", TENSORS, lambda data: data.replace(b'"t0"', b'"t\xff"')),
    ("header-duplicate-key", TENSORS, lambda data: data.replace(b'"t1"', b'"t0"')),
    ("payload-truncated", TENSORS, lambda data: data[:-1]),
    ("payload-trailing", TENSORS, lambda data: data + b"\0"),
    ("payload-bit-flip", "sha256", _flip(-1)),
    ("offsets-overlap", TENSORS, shift("t0", -2, -2)),
    ("offsets-hole", TENSORS, shift("t0", 2, 2)),
    ("offsets-reversed", TENSORS,
     header_change(lambda h: h["t0"]["data_offsets"].reverse())),
    ("offsets-past-end", TENSORS, shift("t0", 1 << 40, 1 << 40)),
    ("offsets-negative", TENSORS, shift("t0", -(1 << 20), -(1 << 20))),
    ("offsets-float", TENSORS, header_change(
        lambda h: h["t0"].update(data_offsets=[float(x) for x in h["t0"]["data_offsets"]]))),
    ("shape-wraps-to-zero", TENSORS,
     header_change(lambda h: h["t0"].update(shape=[1 << 32, 1 << 32, 8]))),
    ("shape-wraps-to-size", TENSORS,
     header_change(lambda h: h["t0"].update(shape=[(1 << 62) + 3, 4, 2]))),
    ("shape-negative", TENSORS, header_change(lambda h: h["t0"].update(shape=[1, -3, -8]))),
    ("shape-not-bytes", TENSORS, header_change(lambda h: h["t0"].update(shape=[1, 3, 7]))),
    ("dtype-unknown", TENSORS, header_change(lambda h: h["t0"].update(dtype="F4"))),
    ("dtype-other", "t0", header_change(lambda h: h["t0"].update(dtype="F16"))),
]  # fmt: skip


def main() -> None:
    """Writes everything again."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    write_good(FOLDER / "good")
    write_good(FOLDER / "good-shared", FOLDER / WEIGHTS)
    small = FOLDER / "small"
    write_small(small, FOLDER / WEIGHTS)
    good = json.loads((small / "recording.json").read_text())
    (small / TENSORS).rename(FOLDER / TENSORS)  # all bad ones share it
    good["files"]["tensors"]["path"] = f"../{TENSORS}"
    shutil.rmtree(small)
    write_sampled(FOLDER / "good-sampled")
    sampled = json.loads((FOLDER / "good-sampled" / "recording.json").read_text())
    shutil.copy(FOLDER / "good-sampled" / TENSORS, FOLDER / ROWS)
    sampled["files"]["tensors"]["path"] = f"../{ROWS}"
    write_simulated(FOLDER / "good-simulated")
    simulated = json.loads((FOLDER / "good-simulated" / "recording.json").read_text())
    shutil.copy(FOLDER / "good-simulated" / TENSORS, FOLDER / SAMPLES)
    simulated["files"]["tensors"]["path"] = f"../{SAMPLES}"
    simulated["files"]["weights"]["path"] = f"../{WEIGHTS}"
    write_same_bytes(FOLDER / "good-same-bytes")
    same_bytes = json.loads((FOLDER / "good-same-bytes" / "recording.json").read_text())
    shutil.copy(FOLDER / "good-same-bytes" / TENSORS, FOLDER / SHAPES)
    same_bytes["files"]["tensors"]["path"] = f"../{SHAPES}"
    write_version_1(FOLDER / "good-version-1")
    expected: dict[str, dict[str, str]] = {}
    changes = [(good, *row) for row in DOCUMENTS] + [(sampled, *row) for row in SAMPLED]
    changes += [(simulated, *row) for row in (*SIMULATED, *ALTERNATIVES)]
    changes += [(same_bytes, *row) for row in SAME_BYTES]
    for base, name, word, change in changes:
        document = copy.deepcopy(base)
        change(document)
        _write(name, json.dumps(document, separators=(",", ":")).encode())
        expected[f"bad-{name}"] = {"field": word}
    text = recording_text(good).encode()
    for name, word, damage in TEXTS:
        _write(name, damage(text))
        expected[f"bad-{name}"] = {"field": word}
    data = (FOLDER / TENSORS).read_bytes()
    for name, word, damage in FILES:
        damaged = damage(data)
        document = copy.deepcopy(good)
        digest = hashlib.sha256(damaged).hexdigest()
        document["files"]["tensors"] = {"path": TENSORS, "bytes": len(damaged), "sha256": digest}
        _write(name, json.dumps(document, separators=(",", ":")).encode())
        (FOLDER / f"bad-{name}" / TENSORS).write_bytes(damaged)
        expected[f"bad-{name}"] = {"field": word}
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def write_version_1(out: Path) -> None:
    """As recordings were before there were simulated kernels: no traces."""
    write_good(out)
    document = json.loads((out / "recording.json").read_text())
    document["version"] = 1
    del document["traces"]
    (out / "recording.json").write_text(recording_text(document))


def _write(name: str, text: bytes) -> None:
    folder = FOLDER / f"bad-{name}"
    folder.mkdir()
    (folder / "recording.json").write_bytes(text)


if __name__ == "__main__":
    main()
