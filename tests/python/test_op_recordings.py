"""`inspector ops`: the native ops are held to torch's, each alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from python_inspector.cases import quantised_ops
from python_inspector.cases.op_recordings import (
    CODES,
    DTYPES,
    MORE,
    WHOLES,
    record_ops,
    recorded_in,
)
from python_inspector.cases.op_table import dtypes_of_ops
from python_inspector.cases.torch_ops import OPS
from python_inspector.cli import inspector


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ops")
    count, left_out = record_ops(folder)
    assert not left_out
    assert count > 8 * len(OPS) * len(DTYPES)
    return folder


def statuses(harness: Path, folder: Path, device: str, out: Path) -> dict[str, str]:
    subprocess.run(
        [harness, "--fixture", folder, "--device", device, "--json", out], capture_output=True
    )
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return {row["checkpoint"]: row["status"] for row in rows if "checkpoint" in row}


@pytest.mark.host
@pytest.mark.parametrize("device", ("cpu", "emu:32"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_native_ops_give_what_torch_gives(
    harness: Path, recordings: Path, dtype: str, device: str, tmp_path: Path
) -> None:
    found = statuses(harness, recordings / f"ops-{dtype}", device, tmp_path / "results.jsonl")
    assert set(found.values()) == {"pass", "blind"}
    for op in (*OPS, *quantised_ops.OPS):
        assert any(it == "pass" for id, it in found.items() if id.startswith(f"{op}:")), op


@pytest.mark.host
@pytest.mark.parametrize("device", ("oracle", "cpu", "emu:32", "emu:64"))
def test_native_ops_give_what_torch_gives_in_more_dtypes(
    harness: Path, recordings: Path, device: str, tmp_path: Path
) -> None:
    for dtype in MORE:
        found = statuses(harness, recordings / f"ops-{dtype}", device, tmp_path / f"{dtype}.jsonl")
        assert set(found.values()) <= {"pass", "blind"}, (dtype, found)
        seen = {id.partition(":")[0] for id, status in found.items() if status == "pass"}
        if dtype in ("f64", "i64"):
            assert seen == recorded_in(dtype)
        elif dtype in WHOLES:
            assert len(seen) > 15
        elif dtype in CODES:
            assert seen == {"gemm"}


@pytest.mark.host
def test_ops_have_the_dtypes_that_are_recorded(harness: Path) -> None:
    command = [harness, "support", "--ops", "--device", "cpu"]
    rows = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[1:]
    listed = {row.split()[0]: set(row.split()[1:]) for row in rows}
    table = dtypes_of_ops()
    assert set(OPS) <= table.keys()
    words = frozenset().union(*table.values())
    assert {name: dtypes & words for name, dtypes in listed.items()} == table
    assert recorded_in("f64") > {"exp", "sum", "gemm", "matmul"}
    assert recorded_in("i64") > {"add", "sum", "cumsum", "where"}
    assert "sub" in recorded_in("u8") - recorded_in("bool")
    assert not {"cast", "gemm", "exp"} & recorded_in("u8")


@pytest.mark.host
def test_a_wrong_whole_number_or_double_fails(
    harness: Path, recordings: Path, tmp_path: Path
) -> None:
    for dtype, wrong in (("i64", {"add": "sub", "max": "min"}), ("f64", {"exp": "expm1"})):
        changed = []

        def change(
            checkpoint: dict[str, Any], changed: list[str] = changed, wrong: dict[str, str] = wrong
        ) -> None:
            op = checkpoint["params"]["op"]
            if op in wrong and "-3x65" in checkpoint["id"] and "normal" in checkpoint["id"]:
                checkpoint["params"]["op"] = wrong[op]
                changed.append(checkpoint["id"])

        folder = edited(recordings / f"ops-{dtype}", tmp_path / dtype, change)
        found = statuses(harness, folder, "cpu", tmp_path / f"{dtype}.jsonl")
        assert changed and {found[id] for id in changed} == {"fail"}


CHANGES = {
    "exp": {"op": "expm1"},
    "ge": {"op": "gt"},
    "logical_or": {"op": "logical_and"},
    "leaky_relu": {"number": 0.3126},
    "affine": {"shift": -1.001},
    "argmax": {"op": "argmin"},
    "sum": {"op": "mean"},
    "cumsum": {"axis": 0},
    "layer_norm": {"eps": 1e-2},
    "mask_fill": {"value": -2.500000238418579},  # one float32 further
    "embedding": {"scale": 2.001953125},
    "pad": {"value": 2.501953125},
    "flip": {"axes": [0]},
    "roll": {"shifts": [1, -6]},
    "top_k": {"largest": False},
    "avg_pool2d": {"counts_padding": False},
    "group_norm": {"eps": 1e-2},
    "gemm": {"alpha": 2.501953125},
    "activation_backward": {"function": "tanh"},
    "softcap_backward": {"number": 2.501953125},
    "rms_norm_backward": {"weight_offset": 1.0},
    "layer_norm_backward": {"eps": 1e-2},
    "gated_rms_norm_backward": {"group_size": 64},
    "embedding_backward": {"scale": 1.00390625},
    "rotary_backward": {"interleaved": True},
    "cross_entropy": {"ignored": 2},
    "cross_entropy_backward": {"ignored": 2},
    "linear_cross_entropy": {"ignored": 2},
    "linear_cross_entropy_backward": {"scale": 1.001953125},
}


@pytest.mark.host
def test_another_op_or_number_fails(harness: Path, recordings: Path, tmp_path: Path) -> None:
    changed = {}

    def change(checkpoint: dict[str, Any]) -> None:
        params = checkpoint["params"]
        if "normal" not in checkpoint["id"] or params["op"] in changed:
            return
        for name, value in CHANGES.get(params["op"], {}).items():
            changed[params["op"]] = checkpoint["id"]
            params[name] = value

    folder = edited(recordings / "ops-f32", tmp_path / "changed", change)
    found = statuses(harness, folder, "cpu", tmp_path / "results.jsonl")
    assert {name: found[id] for name, id in changed.items()} == dict.fromkeys(CHANGES, "fail")


@pytest.mark.host
def test_an_op_that_is_none_or_has_a_block(harness: Path, recordings: Path, tmp_path: Path) -> None:
    def change(checkpoint: dict[str, Any]) -> None:
        if checkpoint["id"].startswith("copy:normal"):
            checkpoint["params"] = {"op": "cpoy"}
        if checkpoint["id"].startswith("embedding:normal"):
            checkpoint["params"] = {"op": "position_ids"}

    folder = edited(recordings / "ops-f32", tmp_path / "changed", change)
    command = [harness, "--fixture", folder, "--checkpoint", "^(copy|embedding):normal"]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    assert 'op is "cpoy", which no op is called' in said
    assert 'op "position_ids" has a block of its own, or reads no tensor' in said


def edited(recording: Path, to: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    header = json.loads((recording / "recording.json").read_text())
    for checkpoint in header["checkpoints"]:
        change(checkpoint)
    to.mkdir()
    (to / "recording.json").write_text(json.dumps(header))
    for tensors in recording.glob("*.safetensors"):
        (to / tensors.name).write_bytes(tensors.read_bytes())
    return to


def test_one_op_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspector.main(["ops", "where", "cumsum", "--out", str(tmp_path), "--seed", "3"]) == 0
    assert "0 left out" in capsys.readouterr().out
    assert inspector.main(["validate", str(tmp_path)]) == 0
    assert inspector.main(["ops", "conv9d", "--out", str(tmp_path)]) == 2
    assert "'conv9d' is no op of neg, abs" in capsys.readouterr().err
