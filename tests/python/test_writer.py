"""The writer: what it stores, and that a recording is complete or not there at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from python_inspector.errors import FormatError
from python_inspector.format import payload
from python_inspector.format.recording import Checkpoint, Contract, OutputRef, TensorRef
from python_inspector.format.writer import RecordingWriter

HEADER = {
    "name": "test/run",
    "provenance": {"created": "2026-01-01T00:00:00Z"},
    "config": {},
    "network": [],
}
AXES = ("batch", "channel")


def fill(recording: RecordingWriter, seed: int = 0) -> None:
    """Three kinds of item size, a weight and a checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 5, generator=generator)
    mask = torch.tensor([[True], [False], [True]])
    recording.contract(
        "eager", Contract("f32", "f32", {"bits": 24, "rounding": "nearest"}, "eager")
    )
    valid = TensorRef(recording.tensor(mask), AXES)
    recording.checkpoint(
        Checkpoint(
            "m#0", "rms_norm", "m", None, 0, 0, "eager", {"eps": 1e-6},
            {"x": TensorRef(recording.tensor(x), AXES)},
            {"weight": recording.weight("m.weight", torch.arange(5.0).bfloat16())},
            {"out": OutputRef(recording.tensor(x + 1), AXES, None, 0.0, valid)},
        )
    )  # fmt: skip


def write(out: Path, weights: Path | None = None, seed: int = 0) -> dict[str, Any]:
    with RecordingWriter(out, weights_path=weights) as recording:
        fill(recording, seed)
        recording.commit(HEADER)
    return read(out)


def read(out: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((out / "recording.json").read_text())
    return result


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below the folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_files_are_plain_safetensors_with_the_stated_hashes(tmp_path: Path) -> None:
    recording = write(tmp_path / "run")
    tensors = load_file(tmp_path / "run" / "tensors.safetensors")
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert list(weights) == ["m.weight"]
    assert torch.equal(weights["m.weight"], torch.arange(5.0).bfloat16())
    for key, entry in recording["tensors"].items():
        tensor = weights[entry["name"]] if entry["file"] == "weights" else tensors[key]
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert list(tensor.shape) == entry["shape"]
    for entry in recording["files"].values():
        data = (tmp_path / "run" / entry["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])


def test_payloads_are_aligned_to_their_item_size(tmp_path: Path) -> None:
    write(tmp_path / "run")
    data = (tmp_path / "run" / "tensors.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    entries = json.loads(data[8 : 8 + length])
    assert {entry["dtype"] for entry in entries.values()} == {"F32", "BOOL"}
    for entry in entries.values():
        assert entry["data_offsets"][0] % {"F32": 4, "BOOL": 1}[entry["dtype"]] == 0


def test_equal_content_is_stored_once(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "run") as recording:
        x = torch.arange(6.0).reshape(2, 3)
        first = recording.tensor(x)
        assert recording.tensor(x.clone()) == first
        assert recording.tensor(x.t().contiguous().t()) == first, "strides do not matter"
        assert recording.tensor(x.reshape(3, 2)) != first, "the shape does"
        assert recording.tensor(x.view(torch.int32)) != first, "the dtype does"
        assert recording.tensor(torch.zeros(0, 3)) != recording.tensor(torch.zeros(3, 0))


def test_strided_tensors_are_stored_in_logical_order(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(2, 3, 4)
    views = [whole.mT[:, ::2], whole[0, 0, ::2], whole[:, :1].expand(2, 5, 4), whole[1, :, 2]]
    with RecordingWriter(tmp_path / "run") as recording:
        keys = [recording.tensor(view) for view in views]
        recording.commit(HEADER)
    stored = load_file(tmp_path / "run" / "tensors.safetensors")
    for key, view in zip(keys, views, strict=True):
        assert torch.equal(stored[key], view)


def test_tied_weights_share_a_key_and_equal_ones_do_not(tmp_path: Path) -> None:
    shared = torch.nn.Parameter(torch.ones(4))
    with RecordingWriter(tmp_path / "run") as recording:
        key = recording.weight("embed.weight", shared)
        assert recording.weight("head.weight", shared) == key
        assert recording.weight("head.weight", shared.detach()) == key
        other = recording.weight("norm.weight", torch.ones(4))
        assert other != key
        recording.commit(HEADER)
    table = read(tmp_path / "run")["tensors"]
    assert [table[k]["name"] for k in (key, other)] == ["embed.weight", "norm.weight"]
    assert len(load_file(tmp_path / "run" / "weights.safetensors")) == 2


def test_a_weight_that_changes_during_the_run_is_refused(tmp_path: Path) -> None:
    weight = torch.ones(4)
    with RecordingWriter(tmp_path / "run") as recording:
        recording.weight("m.weight", weight)
        weight += 1
        with pytest.raises(FormatError, match=r"m\.weight changed during the run"):
            recording.weight("m.weight", weight)


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_one_line_per_checkpoint_and_tensor(tmp_path: Path) -> None:
    recording = write(tmp_path / "run")
    lines = (tmp_path / "run" / "recording.json").read_text().splitlines()
    for key in recording["tensors"]:
        assert sum(f'"{key}": {{"file"' in line for line in lines) == 1
    assert sum('{"id":"m#0"' in line for line in lines) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: setattr(c, "contract", "fused"), "contract fused is not declared"),
        (lambda c: c.inputs.update(x=TensorRef("t99", AXES)), "t99"),
        (lambda c: c.inputs.update(x=TensorRef("t1", ("batch",))), "2 dimensions"),
        (lambda c: c.inputs.update(x=TensorRef("t1", ("batch", "time"))), "'time'"),
        (lambda c: c.weights.update(weight="w9"), "w9"),
        (lambda c: setattr(c.outputs["out"], "delta", "t98"), "delta refers to tensor t98"),
        (lambda c: setattr(c, "params", {"f": object()}), "params.f is a object"),
        (lambda c: None, "already recorded"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[Checkpoint], None], message: str
) -> None:
    with RecordingWriter(tmp_path / "run") as recording:
        fill(recording)
        checkpoint = Checkpoint(
            "m#1" if message != "already recorded" else "m#0",
            "rms_norm", "m", None, 1, 0, "eager", {},
            {"x": TensorRef("t1", AXES)}, {},
            {"out": OutputRef("t1", AXES, None, 0.0)},
        )  # fmt: skip
        change(checkpoint)
        with pytest.raises(FormatError, match=message):
            recording.checkpoint(checkpoint)


def test_a_contract_name_means_one_thing(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "run") as recording:
        fill(recording)
        with pytest.raises(FormatError, match="contract eager"):
            recording.contract("eager", Contract("f16", "f16", {}, "eager"))


def test_notes_and_warnings_reach_the_provenance(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "run") as recording:
        recording.note(limit=float("inf"))
        recording.warn("careful")
        recording.warn("careful")
        recording.commit(HEADER)
    provenance = read(tmp_path / "run")["provenance"]
    assert provenance["notes"] == {"limit": "inf"}
    assert provenance["warnings"] == ["careful"]


# One weights file for several recordings.


def test_a_weights_file_is_shared(tmp_path: Path) -> None:
    shared = tmp_path / "weights-f32.safetensors"
    write(tmp_path / "a", shared)
    before = shared.stat()
    recording = write(tmp_path / "b", shared, seed=1)
    assert shared.stat().st_mtime_ns == before.st_mtime_ns
    assert recording["files"]["weights"]["path"] == "../weights-f32.safetensors"
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "recording.json",
        "tensors.safetensors",
    ]


def test_other_weights_under_the_shared_name_are_an_error(tmp_path: Path) -> None:
    shared = tmp_path / "weights-f32.safetensors"
    write(tmp_path / "a", shared)
    kept = tree(tmp_path)
    with RecordingWriter(tmp_path / "b", weights_path=shared) as recording:
        recording.weight("m.weight", torch.zeros(5).bfloat16())
        with pytest.raises(FormatError, match=r"its m\.weight is bf16"):
            recording.commit(HEADER)
    with RecordingWriter(tmp_path / "b", weights_path=shared) as recording:
        recording.weight("m.bias", torch.zeros(5))
        with pytest.raises(FormatError, match=r"has no weight m\.bias"):
            recording.commit(HEADER)
    assert tree(tmp_path) == kept


def test_a_weights_file_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="must be in"):
        RecordingWriter(tmp_path / "a" / "run", weights_path=tmp_path / "weights.safetensors")


# Nothing half-written.


@pytest.fixture
def old(tmp_path: Path) -> Iterator[tuple[Path, dict[str, bytes]]]:
    """A folder with a finished recording in it, and its content."""
    write(tmp_path / "run", tmp_path / "weights.safetensors")
    yield tmp_path, tree(tmp_path)


class Interrupted(BaseException):
    """As KeyboardInterrupt: not an Exception."""


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, Interrupted])
def test_an_exception_during_the_run_leaves_the_old_recording(
    old: tuple[Path, dict[str, bytes]], error: type[BaseException]
) -> None:
    folder, before = old
    with pytest.raises(error), RecordingWriter(folder / "run") as recording:
        fill(recording, seed=1)
        raise error
    assert tree(folder) == before


def test_leaving_without_commit_leaves_nothing(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "run") as recording:
        fill(recording)
    assert list(tmp_path.iterdir()) == []
    recording.abort()
    with pytest.raises(FormatError, match="committed or aborted"):
        recording.commit(HEADER)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_fails_at_any_call_leaves_the_old_recording(
    old: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    folder, before = old
    real = getattr(os, call)
    failures = 0
    for fail_at in range(1, 100):
        seen = 0

        def failing(*args: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == fail_at:  # noqa: B023 - called within this iteration only
                raise OSError(number, os.strerror(number))
            return real(*args)

        monkeypatch.setattr(payload.os, call, failing)
        try:
            with RecordingWriter(
                folder / "new", weights_path=folder / "w.safetensors"
            ) as recording:
                fill(recording, seed=1)
                recording.commit(HEADER)
        except OSError as error:
            assert error.errno == number
            assert tree(folder) == before
            failures += 1
        else:
            break
        finally:
            monkeypatch.undo()
    assert failures >= (7 if call == "write" else 3), "every write must have had its turn"
    assert (folder / "new" / "recording.json").is_file()


@pytest.mark.parametrize("fail_at", [1, 2, 3])
def test_a_rename_that_fails_leaves_the_old_recording(
    old: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    folder, before = old
    seen = 0

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def move(*args: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == fail_at:
                raise OSError(errno.EIO, "no")
            return real(*args)

        return move

    monkeypatch.setattr(Path, "rename", failing(Path.rename))
    monkeypatch.setattr(Path, "replace", failing(Path.replace))
    with (
        pytest.raises(OSError, match="no"),
        RecordingWriter(folder / "run", weights_path=folder / "other.safetensors") as recording,
    ):
        fill(recording, seed=1)
        recording.commit(HEADER)
    assert tree(folder) == before


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a")
    real = os.write
    monkeypatch.setattr(payload.os, "write", lambda file, data: real(file, data[:3]))
    write(tmp_path / "b")
    monkeypatch.undo()
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_new_recording_replaces_the_old_one(old: tuple[Path, dict[str, bytes]]) -> None:
    folder, before = old
    write(folder / "run", seed=1)
    after = tree(folder)
    assert after["run/tensors.safetensors"] != before["run/tensors.safetensors"]
    assert not [name for name in after if name.startswith(".")]


def test_what_a_killed_process_left_is_cleared(old: tuple[Path, dict[str, bytes]]) -> None:
    folder, before = old
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (folder / f".run.partial-{dead.pid}").mkdir()
    (folder / f".run.partial-{dead.pid}" / ".payloads").write_bytes(b"x")
    (folder / f".run.partial-{os.getppid()}").mkdir()
    (folder / "run").rename(folder / f".run.old-{dead.pid}")  # killed between two renames
    with RecordingWriter(folder / "run") as recording:
        fill(recording, seed=1)
    assert tree(folder) == before
    assert sorted(path.name for path in folder.iterdir()) == [
        f".run.partial-{os.getppid()}",
        "run",
        "weights.safetensors",
    ]


def test_a_folder_that_is_no_recording_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FormatError, match="is no recording"):
        RecordingWriter(tmp_path)
    with pytest.raises(FormatError, match="is no folder"):
        RecordingWriter(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_the_header_must_be_complete(tmp_path: Path) -> None:
    with (
        RecordingWriter(tmp_path / "run") as recording,
        pytest.raises(FormatError, match="network"),
    ):
        recording.commit({key: value for key, value in HEADER.items() if key != "network"})
    assert not (tmp_path / "run").exists()


def test_unknown_dtypes_are_refused(tmp_path: Path) -> None:
    with (
        RecordingWriter(tmp_path / "run") as recording,
        pytest.raises(FormatError, match="complex"),
    ):
        recording.tensor(torch.zeros(2, dtype=torch.complex64))
