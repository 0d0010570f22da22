"""Large tensors that have the bytes of another one in another shape: their payload is there once.

Tables of which that is not true, which both readers refuse, are in tests/data.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import command
from range_server import served
from recorded import Recording
from safetensors.torch import load_file
from test_writer import HEADER, tree

from python_inspector.cases.self_check import check
from python_inspector.format import spool
from python_inspector.format.model_files import open_files, read_tensor
from python_inspector.format.show import show
from python_inspector.format.writer import RecordingWriter
from reports.fleet import partial
from reports.fleet.fetch import Part, fetched, recordings_at

CORPUS = Path(__file__).parents[1] / "data" / "recordings"
SAME_BYTES = CORPUS / "good-same-bytes"
LARGE = spool.BESIDE // 4
"""Elements of the smallest large tensor in float32."""


@pytest.fixture(params=["copied", "in place"])
def large_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to make a file of a spool."""
    if request.param == "in place":
        monkeypatch.setattr(spool, "IN_PLACE", 1)
        monkeypatch.setattr(spool, "HEADER_ROOM", 1 << 12)
    return str(request.param)


def table_of(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder / "recording.json").read_text())["tensors"]
    return table


def write(out: Path, *tensors: torch.Tensor) -> list[str]:
    """A recording of them alone; their keys in its table."""
    with RecordingWriter(out) as writer:
        for tensor in tensors:
            writer.tensor(tensor)
        writer.commit(HEADER)
    return list(table_of(out))


def owners(folder: Path) -> dict[str, str]:
    """Of each tensor that has another one's payload, that one."""
    return {key: e["payload_of"] for key, e in table_of(folder).items() if "payload_of" in e}


def values(count: int = LARGE) -> torch.Tensor:
    return torch.arange(float(count))


def test_the_bytes_are_stored_once_under_the_first_name(tmp_path: Path, large_files: str) -> None:
    x = values()
    tensors = [x + 1, x, x.reshape(4, -1), torch.tensor([1.0]), x.reshape(1, 4, -1), x + 2]
    assert write(tmp_path / "r", *tensors) == ["t3", "t0", "t1", "t2", "t4", "t5"]
    assert owners(tmp_path / "r") == {"t2": "t1", "t4": "t1"}
    stored = load_file(tmp_path / "r" / "tensors.safetensors")
    assert {name for name in stored if "filler" not in name} == {"t0", "t1", "t3", "t5"}
    document = json.loads((tmp_path / "r" / "recording.json").read_text())
    entry = document["files"]["tensors"]
    assert ("header_sha256" in entry) == (large_files == "in place")
    assert entry["bytes"] < 3 * spool.BESIDE + (1 << 13)
    files = open_files(tmp_path / "r", document)
    for number, tensor in enumerate(tensors):
        assert torch.equal(read_tensor(files, document["tensors"], f"t{number}"), tensor)


def test_small_ones_are_stored_as_ever(tmp_path: Path) -> None:
    """So that older readers can read small recordings."""
    for count, expected in ((LARGE - 4, {}), (LARGE, {"t1": "t0"})):
        x = values(count)
        write(tmp_path / "r", x, x.reshape(4, -1))
        assert owners(tmp_path / "r") == expected


def test_the_dtype_is_the_same(tmp_path: Path) -> None:
    x = values()
    write(tmp_path / "r", x, x.view(torch.int32).reshape(4, -1), x.reshape(4, -1))
    assert owners(tmp_path / "r") == {"t2": "t0"}


def test_weights_are_stored_by_name(tmp_path: Path) -> None:
    x = values()
    with RecordingWriter(tmp_path / "r") as writer:
        writer.tensor(x.reshape(2, -1))
        writer.weight("a.weight", x)
        writer.weight("b.weight", x.reshape(4, -1))
        writer.commit(HEADER)
    assert owners(tmp_path / "r") == {}
    assert set(load_file(tmp_path / "r" / "weights.safetensors")) == {"a.weight", "b.weight"}


def test_the_same_order_gives_the_same_bytes(
    tmp_path: Path, large_files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long each takes to be hashed; of two with the same shape one is left."""
    monkeypatch.setattr(spool, "BESIDE", 1)
    sizes = [(1 << (3 + 5 * i % 13)) for i in range(40)]
    x = [values(size) for size in sizes]
    tensors = [t for each in x for t in (each, each.reshape(2, -1), each.clone())]
    for attempt in range(3):
        write(tmp_path / str(attempt), *tensors)
        assert tree(tmp_path / str(attempt)) == tree(tmp_path / "0")
    assert len(owners(tmp_path / "0")) == len(set(sizes))


def test_all_that_reads_tensors_reads_them(tmp_path: Path) -> None:
    recording = Recording(SAME_BYTES)
    for one, other in (("t0", "t4"), ("t3", "t7")):
        assert torch.equal(recording.raw(one).reshape(3, 1, 8), recording.raw(other))
    assert "t4    bf16 [batch 3, token 1, channel 8]" in show(SAME_BYTES, "second")
    assert list(check(SAME_BYTES)) == []  # it has no simulated kernels
    done = command("--fixture", str(SAME_BYTES), "--device", "cpu")
    assert "2 pass" in done.stdout, done.stdout + done.stderr
    done = command("export", str(SAME_BYTES), str(tmp_path), "--checkpoint", "m:second#0")
    exported = load_file(tmp_path / "tensors.safetensors")
    assert torch.equal(exported["t4"], recording.raw("t4")), done.stderr


@pytest.fixture
def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched that is not asked for."""
    for name in ("GAP", "GUESS"):
        monkeypatch.setattr(partial, name, 16)


@pytest.mark.usefixtures("exactly")
def test_a_shared_payload_is_fetched_once(tmp_path: Path) -> None:
    with served(CORPUS) as (url, handler):
        view = fetched(recordings_at(f"{url}/good-same-bytes"), tmp_path, Part(1, 1))
    place = view / "test" / "good-same-bytes"
    size = (SAME_BYTES / "tensors.safetensors").stat().st_size
    unused = 3 * 8 * 2  # t9, which no checkpoint needs
    assert handler.sent["/good-same-bytes/tensors.safetensors"] == size - unused
    done = command("--fixture", str(place), "--device", "cpu")
    assert "2 pass" in done.stdout, done.stdout + done.stderr


@pytest.mark.usefixtures("exactly")
def test_a_part_fetches_the_payloads_of_others_that_it_needs(tmp_path: Path) -> None:
    """Of the second sum alone, whose tensors have no payloads of their own."""
    folder = tmp_path / "second"
    shutil.copytree(SAME_BYTES, folder)
    document = json.loads((folder / "recording.json").read_text())
    del document["checkpoints"][0]
    (folder / "recording.json").write_text(json.dumps(document))
    view = fetched(recordings_at(str(folder)), tmp_path / "cache", Part(1, 1))
    place = view / "test" / "good-same-bytes"
    read = load_file(place / "tensors.safetensors")
    whole = load_file(SAME_BYTES / "tensors.safetensors")
    assert all(torch.equal(read[f"t{i}"], whole[f"t{i}"]) for i in range(4))
    assert not read["t9"].any() and whole["t9"].any()  # no checkpoint needs it
    done = command("--fixture", str(place), "--device", "cpu")
    assert "1 pass" in done.stdout, done.stdout + done.stderr
