"""`harness --shard` and `reports merge`: shards together are the run that was not sharded."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness_runs import ROOT, harness

from reports.__main__ import main
from reports.fleet import sorting

SHARDS = 3
FIXTURES = [
    "--fixture",
    "fixtures/llama-a1/decode-bf16",
    "--fixture",
    "fixtures/llama-a1/whole-f32",
]
RUN = [*FIXTURES, "--checkpoint", "norm|lm_head|rotary", "--repeat", "1"]
Line = dict[str, Any]


def verified(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [harness(), *options, "--json", str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def checkpoints(path: Path) -> list[tuple[str, str, str]]:
    return [
        (line["recording"], line["checkpoint"], line["device"])
        for line in lines(path)
        if line["type"] == "checkpoint"
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """whole.jsonl, and the same as 0.jsonl, 1.jsonl, 2.jsonl."""
    folder = tmp_path_factory.mktemp("runs")
    devices = ["--device", "cpu,oracle"]
    assert verified(folder / "whole.jsonl", *RUN, *devices).returncode == 0
    for index in range(SHARDS):
        shard = ["--shard", f"{index + 1}/{SHARDS}"]
        done = verified(folder / f"{index}.jsonl", *RUN, *devices, *shard)
        assert done.returncode == 0, done.stdout
        assert f"shard {index + 1}/{SHARDS}: " in done.stdout
    return folder


def merged(out: Path, *parts: Path) -> int:
    words = [str(part) for part in parts]
    return main(["merge", *words, "--out", str(out), "--harness", harness()])


def parts_of(runs: Path) -> list[Path]:
    return [runs / f"{index}.jsonl" for index in range(SHARDS)]


def test_merged_shards_have_the_bytes_of_the_merged_whole(tmp_path: Path, runs: Path) -> None:
    assert merged(tmp_path / "whole", runs / "whole.jsonl") == 0
    assert merged(tmp_path / "shards", *reversed(parts_of(runs))) == 0
    assert (tmp_path / "shards").read_bytes() == (tmp_path / "whole").read_bytes()
    assert merged(tmp_path / "again", tmp_path / "shards") == 0
    assert (tmp_path / "again").read_bytes() == (tmp_path / "shards").read_bytes()


def test_more_than_memory_holds_is_sorted_on_disk(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert merged(tmp_path / "whole", runs / "whole.jsonl") == 0
    monkeypatch.setattr(sorting, "MOST_HELD", 10_000)
    monkeypatch.setattr(sorting, "MOST_RUNS", 3)
    assert merged(tmp_path / "shards", *parts_of(runs)) == 0
    assert (tmp_path / "shards").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards", "whole"]


def test_what_is_merged_is_what_the_whole_run_wrote_but_for_order_and_times(
    tmp_path: Path, runs: Path
) -> None:
    assert merged(tmp_path / "shards", *parts_of(runs)) == 0
    found, expected = lines(tmp_path / "shards"), lines(runs / "whole.jsonl")
    keys = checkpoints(tmp_path / "shards")
    assert keys == sorted(keys) == sorted(checkpoints(runs / "whole.jsonl"))
    for line in [*found, *expected]:
        line.pop("seconds", None)
    summary = expected.pop()
    assert found.pop() == summary | {"blind_features": found_features(tmp_path / "shards")}
    by_key = {(li["recording"], li["checkpoint"], li["device"]): li for li in expected[1:]}
    assert found[1:] == [by_key[key] for key in keys]
    assert found[0]["command"] == (
        "harness --fixture fixtures/llama-a1/decode-bf16 --fixture fixtures/llama-a1/whole-f32 "
        "--checkpoint 'norm|lm_head|rotary' --repeat 1 --device cpu,oracle"
    )
    assert found[0]["started"] == ""
    for name in ("version", "schema", "request", "environment"):
        assert found[0][name] == expected[0][name]


def found_features(path: Path) -> list[Line]:
    """Their order is that of the checkpoints."""
    features: list[Line] = lines(path)[-1]["blind_features"]
    return features


def test_a_checkpoint_stays_in_its_shard_whatever_else_is_selected(
    tmp_path: Path, runs: Path
) -> None:
    wide = tmp_path / "wide.jsonl"
    shard = ["--shard", f"2/{SHARDS}", "--device", "cpu", "--repeat", "1"]
    verified(wide, *FIXTURES, "--fixture", "fixtures/llama-a1/decode-f32", *shard)
    mine = {key for key in checkpoints(runs / "1.jsonl") if key[2] == "cpu"}
    others = {key for key in checkpoints(runs / "whole.jsonl") if key[2] == "cpu"} - mine
    assert mine and others
    assert mine <= set(checkpoints(wide))
    assert not others & set(checkpoints(wide))
    for recording, checkpoint, _ in mine:
        assert (recording, checkpoint, "oracle") in checkpoints(runs / "1.jsonl")


def test_more_shards_than_checkpoints_leave_empty_ones_that_pass(tmp_path: Path) -> None:
    one = [*FIXTURES[:2], "--checkpoint", "model.norm#0", "--device", "cpu", "--repeat", "1"]
    assert verified(tmp_path / "whole", *one).returncode == 0
    files, empty = [], 0
    for index in range(1, 6):
        files.append(tmp_path / f"{index}")
        done = verified(files[-1], *one, "--shard", f"{index}/5")
        assert done.returncode == 0
        if "the shard is empty, so there was nothing to verify" in done.stdout:
            empty += 1
    assert empty == 4
    assert merged(tmp_path / "shards", *files) == 0
    assert merged(tmp_path / "a", tmp_path / "whole") == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "shards").read_bytes()
    none = verified(tmp_path / "none", *one, "--block", "sdpa", "--shard", "1/5")
    assert none.returncode == 2
    assert "no checkpoint matches" in none.stderr


def test_devices_that_ran_alone_are_merged_like_shards(tmp_path: Path, runs: Path) -> None:
    for device in ("oracle", "cpu"):
        assert verified(tmp_path / device, *RUN, "--device", device).returncode == 0
    assert merged(tmp_path / "both", tmp_path / "oracle", tmp_path / "cpu") == 0
    assert merged(tmp_path / "whole", runs / "whole.jsonl") == 0
    assert (tmp_path / "both").read_bytes() == (tmp_path / "whole").read_bytes()


def test_what_no_shard_has_seen_is_known_when_they_are_merged(tmp_path: Path) -> None:
    blind = ["--checkpoint", "model.norm#", "--device", "cpu", "--repeat", "1"]
    whole = verified(tmp_path / "whole", *FIXTURES, *blind, "--strict")
    files = []
    for index in (1, 2):
        files.append(tmp_path / f"{index}")
        verified(files[-1], *FIXTURES, *blind, "--strict", "--shard", f"{index}/2")
    assert merged(tmp_path / "both", *files) == whole.returncode


Edit = Callable[[list[Line]], object]


def set_run(name: str, value: object) -> Edit:
    return lambda all_lines: all_lines[0].update({name: value})


def set_request(name: str, value: str) -> Edit:
    return lambda all_lines: all_lines[0]["request"].update({name: value})


def set_commit(all_lines: list[Line]) -> None:
    all_lines[0]["environment"]["commit"] = "abc"


def set_dtype(all_lines: list[Line]) -> None:
    all_lines[0]["request"]["dtype"] = "f32"


def set_shard(all_lines: list[Line]) -> None:
    all_lines[0]["request"]["shard"] = "2/3000000000"


def set_golden(all_lines: list[Line]) -> None:
    all_lines[1]["golden_sha256"] = "0" * 64


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (set_run("version", "9.9"), "version is .* in .*0.jsonl and 9.9 in .*1.jsonl"),
        (set_commit, "commit is None in .*0.jsonl and abc in .*1.jsonl"),
        (set_dtype, "--dtype is None in .*0.jsonl and f32 in .*1.jsonl"),
        (
            set_request("referee", "native"),
            "--referee is None in .*0.jsonl and native in .*1.jsonl",
        ),
        (set_request("plugin", "a.so"), "--plugin is None in .*0.jsonl and a.so in .*1.jsonl"),
        (set_request("plugin-sha256", "ab"), "the SHA-256 of --plugin is None in .*0.jsonl and ab"),
        (set_golden, "has the hash .* in .*0.jsonl and 000000000000 in .*1.jsonl"),
        (lambda all_lines: all_lines.pop(), "1.jsonl: was cut short; run it again"),
        (lambda all_lines: all_lines.pop(1), "checkpoints of .* that were selected"),
        (lambda all_lines: all_lines.insert(1, all_lines[1]), "1.jsonl:3: .* is there twice"),
        (lambda all_lines: all_lines[0].pop("request"), "harness is too old to merge"),
        (lambda all_lines: all_lines.pop(0), "1.jsonl:1: a checkpoint line comes before the run"),
        (lambda all_lines: all_lines.extend(all_lines[:]), "1.jsonl:.*: a second run and compa"),
        (set_run("schema", 2), "1.jsonl:1: schema is 2, this reader knows 1; use"),
        (set_run("devices", "cpu"), "1.jsonl:1: devices is 'cpu', needs an array"),
        (set_shard, "1.jsonl:1: request.shard is '2/3000000000', needs i/n"),
        (lambda all_lines: all_lines[1].pop("fixture"), "1.jsonl:2: lacks fixture"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str], edit: Edit, problem: str
) -> None:
    parts = parts_of(runs)
    edited = lines(parts[1])
    edit(edited)
    parts[1] = tmp_path / "1.jsonl"
    parts[1].write_text("".join(json.dumps(line) + "\n" for line in edited))
    assert merged(tmp_path / "out", *parts) == 3
    assert re.search(problem, capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.jsonl"]


def test_shards_that_are_missing_or_there_twice_are_named(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = parts_of(runs)
    out = tmp_path / "out"
    assert merged(out, second) == 3
    assert "cpu: no file has the shards 1/3, 3/3" in capsys.readouterr().err
    assert merged(out, first, second, third, second) == 3
    assert f"cpu: shard 2/3 is in 2 files: {second}, {second}" in capsys.readouterr().err
    assert merged(out, first, runs / "whole.jsonl") == 3
    assert "the number of shards on cpu is 3 in" in capsys.readouterr().err
    assert not out.exists()


def test_a_part_is_not_overwritten_with_the_whole(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = parts_of(runs)
    before = parts[0].read_bytes()
    assert merged(parts[0], *parts) == 3
    assert f"{parts[0]}: would be overwritten" in capsys.readouterr().err
    assert parts[0].read_bytes() == before


def test_a_folder_that_is_not_there_is_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "none" / "out"
    assert merged(out, runs / "whole.jsonl") == 3
    assert f"{out}: cannot be written: there is no folder {out.parent}; make it (mkdir -p " in (
        capsys.readouterr().err
    )


def test_another_program_than_the_harness_is_named(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for program, words in (("echo", "gave no summary"), (tmp_path / "none", "cannot be run")):
        command = ["merge", str(runs / "whole.jsonl"), "--out", str(tmp_path / "out")]
        assert main([*command, "--harness", str(program)]) == 3
        assert f"reports: {program}: {words}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
