"""Shards by layers: few bytes for each, and together the results of one run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness_runs import ROOT, harness
from range_server import Handler, served

from reports.__main__ import main
from reports.fleet import partial
from reports.fleet.fetch import Part, fetched, recordings_at
from reports.fleet.layers import LayerShards, layer_of
from reports.fleet.sweep import Plan, Shard, run_shard

CASE = "gemma2-a4/decode-bf16"
MODEL = ROOT / "fixtures" / "gemma2-a4"
PAYLOADS = ("decode-bf16/tensors.safetensors", "weights-bf16.safetensors")
Server = tuple[str, type[Handler]]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As these files are small: what comes along by chance is less than a layer."""
    monkeypatch.setattr(partial, "GUESS", 4096)
    monkeypatch.setattr(partial, "GAP", 256)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The recording and its weights, to be changed."""
    folder = tmp_path / "served" / "gemma2-a4"
    for name in ("decode-bf16/recording.json", *PAYLOADS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(MODEL / name, folder / name)
    return folder


@pytest.fixture
def server(copy: Path) -> Iterator[Server]:
    with served(copy.parent) as running:
        yield running


def verified(folder: Path, out: Path, *options: str) -> list[str]:
    """The ids that the harness judged."""
    words = ["--fixture", CASE, "--device", "cpu", "--repeat", "1", "--json", str(out), *options]
    done = subprocess.run([harness(), *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = map(json.loads, out.read_text().splitlines())
    return [line["checkpoint"] for line in lines if line["type"] == "checkpoint"]


def merged(out: Path, *parts: Path) -> bytes:
    assert main(["merge", *map(str, parts), "--out", str(out), "--harness", harness()]) == 0
    return out.read_bytes()


def test_shards_that_fetched_their_layers_alone_are_the_run_of_the_whole(
    tmp_path: Path, server: Server
) -> None:
    url, handler = server
    found = recordings_at(f"{url}/{CASE}")
    shards = LayerShards(CASE, [each["id"] for each in header_of(MODEL)["checkpoints"]])
    parts, fractions = [], []
    for index in range(1, 7):
        handler.sent.clear()
        view = fetched(found, tmp_path / f"node{index}", Part(index, 6))
        parts.append(tmp_path / f"{index}.jsonl")
        shard = ("--shard", f"{index}/6", "--shard-by", "layers")
        ids = verified(view, parts[-1], *shard)
        assert ids and {shards.shard_of(each, 6) for each in ids} == {index}
        sent = sum(n for path, n in handler.sent.items() if path.endswith(".safetensors"))
        fractions.append(sent / sum((MODEL / name).stat().st_size for name in PAYLOADS))
    assert sum(fractions) / 6 < 0.5
    verified(ROOT / "fixtures", tmp_path / "whole.jsonl")
    whole = merged(tmp_path / "one", tmp_path / "whole.jsonl")
    assert merged(tmp_path / "all", *parts) == whole
    by_hash = [tmp_path / f"hash{index}.jsonl" for index in (1, 2)]
    for index, path in enumerate(by_hash, 1):
        verified(ROOT / "fixtures", path, "--shard", f"{index}/2")
    assert merged(tmp_path / "other", *by_hash) == whole


def test_shards_by_layers_and_others_are_not_of_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    verified(ROOT / "fixtures", paths[0], "--shard", "1/2", "--shard-by", "layers")
    verified(ROOT / "fixtures", paths[1], "--shard", "2/2")
    words = ["merge", *map(str, paths), "--out", str(tmp_path / "out"), "--harness", harness()]
    assert main(words) == 3
    assert "--shard-by is layers in " in capsys.readouterr().err


def header_of(folder: Path) -> Any:
    return json.loads((folder / "decode-bf16" / "recording.json").read_text())


def test_a_second_shard_of_a_node_fetches_what_is_new(tmp_path: Path, server: Server) -> None:
    url, handler = server
    found = recordings_at(f"{url}/{CASE}")
    view = fetched(found, tmp_path / "cache", Part(1, 4))
    first = sum(handler.sent.values())
    assert fetched(found, tmp_path / "cache", Part(1, 4)) == view
    assert sum(handler.sent.values()) == first
    for listed in (tmp_path / "cache" / "partial").glob("*.have"):
        listed.write_text(listed.read_text() + '"torn')  # as a node that died leaves it
    for index in (2, 3, 4):
        assert fetched(found, tmp_path / "cache", Part(index, 4)) == view
    for name in PAYLOADS:
        content = (MODEL / name).read_bytes()
        assert handler.sent[f"/gemma2-a4/{name}"] < 1.3 * len(content) + partial.GUESS
        header = int.from_bytes(content[:8], "little") + 8
        assert (view / "gemma2-a4" / name).read_bytes()[:header] == content[:header]
    assert (view / "gemma2-a4" / PAYLOADS[0]).read_bytes() == (MODEL / PAYLOADS[0]).read_bytes()


def test_what_has_holes_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    found = recordings_at(str(MODEL / "decode-bf16"))
    part = fetched(found, tmp_path, Part(1, 4))
    whole = fetched(found, tmp_path)
    for name in PAYLOADS:
        assert (whole / "gemma2-a4" / name).read_bytes() == (MODEL / name).read_bytes()
        assert (part / "gemma2-a4" / name).read_bytes() != (MODEL / name).read_bytes()
    assert fetched(found, tmp_path, Part(2, 4)) == whole  # which is there


def test_a_file_with_holes_takes_little_space(tmp_path: Path) -> None:
    view = fetched(recordings_at(str(MODEL / "decode-bf16")), tmp_path, Part(1, 400))
    stored = view / "gemma2-a4" / PAYLOADS[1]
    assert stored.stat().st_size == (MODEL / PAYLOADS[1]).stat().st_size
    assert stored.stat().st_blocks * 512 < 0.8 * stored.stat().st_size


def test_what_breaks_off_goes_on_and_what_always_does_is_named(
    tmp_path: Path, server: Server
) -> None:
    url, handler = server
    found = recordings_at(f"{url}/{CASE}")
    handler.breaks = 2
    verified(fetched(found, tmp_path / "a", Part(1, 2)), tmp_path / "out",
             "--shard", "1/2", "--shard-by", "layers")  # fmt: skip
    handler.breaks = 1000
    with pytest.raises(OSError, match=r"safetensors: \d+ bytes at 0: only \d+ came in 3 attempts"):
        fetched(found, tmp_path / "b", Part(1, 2))


def test_a_server_without_ranges_is_named(tmp_path: Path, server: Server) -> None:
    url, handler = server
    handler.ranges = False
    with pytest.raises(ValueError, match=r"has no range requests \(it answers 200, not 206\)"):
        fetched(recordings_at(f"{url}/{CASE}"), tmp_path / "cache", Part(1, 2))


@pytest.mark.parametrize("name", PAYLOADS)
def test_what_was_changed_is_refused(tmp_path: Path, copy: Path, server: Server, name: str) -> None:
    found = recordings_at(f"{server[0]}/{CASE}")
    content = bytearray((copy / name).read_bytes())
    content[-2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}: the tensor \S+ has the SHA-256 .*upload"):
        for index in (1, 2):
            fetched(found, tmp_path / "cache", Part(index, 2))
    (copy / name).write_bytes(content + b"more")
    with pytest.raises(ValueError, match=f"has {len(content) + 4} bytes, its recording says "):
        fetched(found, tmp_path / "other", Part(1, 2))
    (copy / name).write_bytes(b"\xff" * len(content))
    with pytest.raises(ValueError, match="is no safetensors file: its header has"):
        fetched(found, tmp_path / "third", Part(1, 2))
    (copy / name).unlink()
    with pytest.raises(OSError, match=f"{name}: .*HTTP Error 404: .* in 3 attempts"):
        fetched(found, tmp_path / "fourth", Part(1, 2))


def test_weights_of_the_models_own_folder_are_fetched_from_where_they_are(
    tmp_path: Path, copy: Path, server: Server
) -> None:
    header = header_of(copy)
    size = (copy / PAYLOADS[1]).stat().st_size
    (copy / PAYLOADS[1]).rename(copy / "model.safetensors")
    header["model_files"] = {
        "folder": "/nowhere", "files": {"model.safetensors": {"bytes": size}}
    }  # fmt: skip
    del header["files"]["weights"]
    payload = header["files"]["tensors"]
    start = 8 + int.from_bytes((copy / PAYLOADS[0]).read_bytes()[:8], "little")
    payload["header_sha256"] = sha256((copy / PAYLOADS[0]).read_bytes()[:start])
    del payload["sha256"]
    for tensor in header["tensors"].values():
        if tensor.get("file") == "weights":
            tensor["model_file"] = "model.safetensors"
            del tensor["file"]
    (copy / "decode-bf16" / "recording.json").write_text(json.dumps(header))
    for weights in (str(copy), f"{server[0]}/gemma2-a4/"):
        cache = tmp_path / f"cache{len(weights)}"
        found = recordings_at(str(copy), weights)
        whole = fetched(found, cache)
        assert (whole / ".weights" / "model.safetensors").stat().st_size == size
        assert (whole / "gemma2-a4" / PAYLOADS[0]).read_bytes() == (
            MODEL / PAYLOADS[0]
        ).read_bytes()
        part = fetched(found, tmp_path / f"part{len(weights)}", Part(2, 4))
        names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(4)]
        there = [content_of(part / ".weights" / "model.safetensors", name) for name in names]
        expected = [content_of(copy / "model.safetensors", name) for name in names]
        assert there[1] == expected[1] and any(there[1])
        assert not any(there[3])
        plan = Plan(tuple(found), cache, Path(harness()), ("--repeat", "1"), by_layers=True)
        lines = map(json.loads, run_shard(plan, Shard("cpu", 2, 4)).splitlines())
        statuses = {line["status"] for line in lines if line["type"] == "checkpoint"}
        assert "pass" in statuses and statuses <= {"pass", "blind"}
    assert sum(server[1].sent.values()) > 0
    with pytest.raises(OSError, match=r"nowhere/model\.safetensors: .* --weights URI"):
        fetched(recordings_at(str(copy)), tmp_path / "nowhere")
    payload["header_sha256"] = "0" * 64
    (copy / "decode-bf16" / "recording.json").write_text(json.dumps(header))
    with pytest.raises(ValueError, match="its header has the SHA-256 "):
        fetched(recordings_at(str(copy), str(copy)), tmp_path / "wrong")


def sha256(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def content_of(path: Path, name: str) -> bytes:
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    begin, end = json.loads(content[8:start])[name]["data_offsets"]
    return content[start + begin : start + end]


def test_fetch_prints_the_command_that_verifies(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "part"
    words = ["fetch", f"{server[0]}/{CASE}", "--out", str(out), "--cache", str(tmp_path / "c")]
    for _ in range(2):
        assert main([*words, "--shard", "2/3"]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert command == f"harness --fixture {out} --shard 2/3 --shard-by layers"
    results = tmp_path / "results.jsonl"
    done = subprocess.run(
        [harness(), *command.split()[1:], "--device", "cpu", "--json", str(results)], check=False
    )
    assert done.returncode == 0 and results.stat().st_size > 10_000
    for wrong in ("4/3", "0/3", "x"):
        with pytest.raises(SystemExit):
            main([*words, "--shard", wrong])
        assert f"--shard {wrong}: needs i/n" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["fetch", str(MODEL), "--out", str(tmp_path)])
    assert "is there, and no link" in capsys.readouterr().err


def test_layers_are_those_of_the_harness() -> None:
    assert [layer_of(words) for words in ("a.17.b:c#3", "h.3#0", "model.norm#1", "a.1x.2#0")] == [
        17, 3, None, 2,
    ]  # fmt: skip
    assert layer_of("h.99999999999999999999#0") is None


def test_a_chain_needs_the_whole_recording(tmp_path: Path) -> None:
    found = recordings_at(str(MODEL / "decode-bf16"))
    sizes = []
    for index in (1, 2, 3):
        view = fetched(found, tmp_path / str(index), Part(index, 3, chains=True))
        content = (view / "gemma2-a4" / PAYLOADS[0]).read_bytes()
        sizes.append(content == (MODEL / PAYLOADS[0]).read_bytes())
    assert sizes.count(True) == 1
