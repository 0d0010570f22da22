"""Baselines: written, read in both schemas, moved only on purpose, never half written."""

from __future__ import annotations

import json
import lzma
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from history_runs import checkpoint, output, write

from reports.__main__ import main
from reports.files import replace_text
from reports.history import baseline

ROOT = Path(__file__).parents[2]
OTHER = {"output_sha256": "c" * 64}


def made(tmp_path: Path, *checkpoints: dict[str, Any]) -> Path:
    path = tmp_path / "baseline.jsonl"
    path.unlink(missing_ok=True)
    results = write(tmp_path / "first.jsonl", *checkpoints)
    assert main(["baseline", str(results), "--out", str(path)]) == 0
    return path


def test_a_run_that_was_cut_short_makes_no_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, path = write(tmp_path / "run.jsonl", checkpoint("a"), checkpoint("b")), tmp_path / "b"
    results.write_text("".join(results.read_text().splitlines(keepends=True)[:-1]))
    assert main(["baseline", str(results), "--out", str(path)]) != 0
    assert f"{results}: was cut short after 2 checkpoints" in capsys.readouterr().err
    assert not path.exists()


def test_a_device_that_never_ends_is_no_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = write(tmp_path / "run.jsonl", checkpoint("a"))
    assert main(["history", "accept", str(results), "/dev/full"]) == 3
    assert "/dev/full: is a device" in capsys.readouterr().err


def test_a_failing_run_makes_no_baseline_unless_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines_of_run = [
        checkpoint("a"), checkpoint("b", status="blind"), checkpoint("c", status="timeout"),
        *(checkpoint(f"f{i:02}", status="fail") for i in range(25)),
    ]  # fmt: skip
    results, path = write(tmp_path / "run.jsonl", *lines_of_run), tmp_path / "baseline.jsonl"
    command = ["baseline", str(results), "--out", str(path)]
    assert main(command) == 1 and not path.exists()
    first, *named, rest, last = capsys.readouterr().out.splitlines()
    assert first == "26 of 28 checkpoints fail: 25 fail, 1 timeout"
    assert len(named) == 20 and named[0].split() == ["timeout", "llama/whole", "c", "cpu", "bf16"]
    assert rest == "  and 6 more"
    assert last == f"{path}: not written; --passing keeps the 2 others"
    assert main([*command, "--passing"]) == 0
    assert "26 of 28 checkpoints fail" in capsys.readouterr().out
    assert [key.checkpoint for key in baseline.read(path).checkpoints] == ["a", "b"]


def test_a_run_of_which_nothing_passes_makes_no_baseline(tmp_path: Path) -> None:
    results, path = write(tmp_path / "run.jsonl", checkpoint(status="fail")), tmp_path / "b.jsonl"
    assert main(["baseline", str(results), "--out", str(path), "--passing"]) == 1
    assert not path.exists()


def accept(
    path: Path, tmp_path: Path, *checkpoints: dict[str, Any], words: tuple[str, ...] = ()
) -> int:
    results = write(tmp_path / "now.jsonl", *checkpoints)
    return main(["history", "accept", str(results), str(path), *words])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_baseline_keeps_what_every_rule_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = output(0.00123456789, gain="nan", octaves=[5, 3] + [0] * 24, conformance={"differ": 3})
    path = made(tmp_path, checkpoint("a", many))
    header, entry = lines(path)
    assert (header["schema"], header["device"]) == (2, "cpu")
    assert header["runs"][0]["devices"] == ["cpu: a CPU, avx2"]
    assert entry["outputs"]["out"] == {
        "E_T": 0.0012346, "M_E": 0.004, "gain": "nan", "token": 0.0012346, "channel": 0.0012346,
        "differing": 3, "octaves": [5, 3],
    }  # fmt: skip
    assert main(["history", "compare", str(path), str(tmp_path / "first.jsonl")]) == 0
    assert "1 unchanged" in capsys.readouterr().out
    worse = write(tmp_path / "now.jsonl", checkpoint("a", output(2e-3), **OTHER))
    assert main(["history", "compare", str(path), str(worse)]) == 1


def test_a_baseline_of_the_older_schema_says_what_it_cannot_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path, checkpoint("a"), checkpoint("b"))
    header, *entries = lines(path)
    header |= {"schema": 1, "device": None}
    for entry in entries:
        del entry["outputs"]["out"]["octaves"]
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *entries)))
    now = (checkpoint("a", output(1.4e-3, octaves=[0] * 20), **OTHER), checkpoint("b"))
    assert main(["history", "compare", str(path), str(write(tmp_path / "n.jsonl", *now))]) == 0
    said = capsys.readouterr().out
    assert "the older side keeps no histogram of 2 checkpoints: tail and drift" in said
    assert accept(path, tmp_path, checkpoint("a", error=1e-4, **OTHER), checkpoint("b")) == 0
    assert lines(path)[0]["schema"] == 2 and "octaves" in lines(path)[1]["outputs"]["out"]


def test_the_committed_baselines_are_read() -> None:
    found = sorted((ROOT / "reports" / "baselines").glob("*.jsonl*"))
    read = {
        path.name.partition(".")[0]: baseline.read(path)
        for path in found
        if baseline.is_baseline(path)
    }
    assert {"cpu", "emu-64", "nvidia-h200"} <= read.keys()
    assert (read["cpu"].device, read["emu-64"].device) == ("cpu", "emu:64")
    assert all(len(found.checkpoints) > 2000 for found in read.values())


def test_a_compressed_baseline_is_read_written_and_told_where_it_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = made(tmp_path, *(checkpoint(name) for name in ("a", "b")))
    path = tmp_path / "b.jsonl.xz"
    baseline.write(replace(baseline.read(plain), path=path))
    assert lzma.decompress(path.read_bytes()) == plain.read_bytes()
    assert main(["history", "compare", str(plain), str(path)]) == 0
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["history", "compare", str(plain), str(path)]) == 3
    assert f"{path}: is damaged after line" in capsys.readouterr().err


def test_better_is_taken_and_worse_only_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path, *(checkpoint(name) for name in ("a", "b", "c", "gone")))
    now = (
        checkpoint("a", error=5e-4, **OTHER),
        checkpoint("b", error=1.2e-3, **OTHER),  # within the rules, yet a step down
        checkpoint("c", **OTHER, status="fail"),
        checkpoint("new"),
        checkpoint("new and wrong", status="fail"),
    )
    assert accept(path, tmp_path, *now) == 1
    said = capsys.readouterr().out
    assert "not taken, worse: llama/whole  c " in said
    assert "not taken, new, status fail: llama/whole  new and wrong " in said
    assert "1 are larger within what is allowed: the smaller figures stay" in said
    assert "2 were not taken: --reason TEXT" in said
    read = {k.checkpoint: c for k, c in baseline.read(path).checkpoints.items()}
    assert [read[n].error for n in ("a", "b", "c", "gone", "new")] == [5e-4, *[1e-3] * 4]
    assert len(read) == 5

    reason = ("--reason", "a new exp, 10 % faster", "--checkpoint", "^[bg]", "--drop-gone")
    assert accept(path, tmp_path, *now, words=reason) == 0
    read = {k.checkpoint: c for k, c in baseline.read(path).checkpoints.items()}
    assert (read["b"].error, read["c"].status, "gone" in read) == (1.2e-3, "pass", False)
    (record,) = [line for line in lines(path) if line.get("type") == "accepted"]
    assert record["reason"] == "a new exp, 10 % faster" and record["when"] and record["who"]
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    was = {"status": "pass", "E_T": 1e-3}
    assert record["changes"] == [
        ["llama/whole", "b", "bf16", True, was, was | {"E_T": 1.2e-3}],
        ["llama/whole", "gone", "bf16", True, was, None],
    ]  # fmt: skip
    assert accept(path, tmp_path, checkpoint("a", error=1.0, **OTHER), words=("--reason", "x")) == 0
    assert [line["reason"] for line in lines(path) if "reason" in line] == [reason[1], "x"]


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (checkpoint("a", error=1.4e-3, **OTHER), 0),
        (checkpoint("a", error=1.6e-3, **OTHER), 1),
        (checkpoint("a", output(octaves=[0, 30, 40, 50, 20, 90]), **OTHER), 1),
        (checkpoint("a", error=0.5e-3, **OTHER), 0),
        (checkpoint("a", **OTHER, status="fail"), 1),
    ],
)
def test_accept_calls_worse_what_compare_does(
    now: dict[str, Any], code: int, tmp_path: Path
) -> None:
    path = made(tmp_path, checkpoint("a"), checkpoint("b"))
    results = write(tmp_path / "now.jsonl", now, checkpoint("b"))
    assert main(["history", "compare", str(path), str(results)]) == code
    assert main(["history", "accept", str(results), str(path)]) == code


def test_small_losses_everywhere_are_worse_to_accept_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"n{i}" for i in range(12)]
    path = made(tmp_path, *map(checkpoint, names))
    before = path.read_bytes()
    now = [checkpoint(name, error=1.1e-3, **OTHER) for name in names]
    assert accept(path, tmp_path, *now) == 1
    assert "cpu: of 12 errors that changed 12 grew" in capsys.readouterr().out
    assert path.read_bytes() == before
    results = str(tmp_path / "now.jsonl")
    assert main(["history", "compare", str(path), results]) == 1
    assert accept(path, tmp_path, *now, words=("--reason", "simpler")) == 0
    assert all(c.error == 1.1e-3 for c in baseline.read(path).checkpoints.values())


def test_another_recording_needs_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path, checkpoint("a"))
    now = checkpoint("a", error=1e-4, **OTHER, golden_sha256="d" * 64)
    assert accept(path, tmp_path, now) == 1
    assert "not taken, not comparable: llama/whole  a " in capsys.readouterr().out
    assert accept(path, tmp_path, now, words=("--reason", "recorded again")) == 0


def test_accepting_the_same_again_changes_nothing(tmp_path: Path) -> None:
    path = made(tmp_path, checkpoint("b"), checkpoint("a"))
    before = path.read_bytes()
    assert [line["checkpoint"] for line in lines(path)[1:]] == ["a", "b"]
    assert accept(path, tmp_path, checkpoint("a"), checkpoint("b"), words=("--reason", "x")) == 0
    assert path.read_bytes() == before


def test_an_accepted_entry_names_the_commit_it_was_measured_at(tmp_path: Path) -> None:
    path = made(tmp_path, checkpoint("a"), checkpoint("b"))
    (first,) = lines(path)[0]["runs"]
    abc1, abc2 = "abc1" * 10, "abc2" * 10
    now = (checkpoint("a", error=5e-4, **OTHER), checkpoint("b"))
    assert accept(path, tmp_path, *now, words=("--commit", abc1, "--checkpoint", "b")) == 0
    assert lines(path)[0]["runs"] == [first]  # nothing was taken
    assert accept(path, tmp_path, *now, words=("--commit", abc1)) == 0
    header, *entries = lines(path)
    assert [run["commit"] for run in header["runs"]] == [first["commit"], abc1]
    assert [entry.get("commit") for entry in entries] == [abc1, None]
    assert baseline.read(path).commits.keys() == baseline.read(path).checkpoints.keys()

    now = (checkpoint("a", error=4e-4, **OTHER), checkpoint("b", error=2e-3, **OTHER))
    words = ("--commit", abc2, "--reason", "simpler")
    assert accept(path, tmp_path, *now, words=words) == 0
    header, _, *entries = lines(path)
    assert [run["commit"] for run in header["runs"]] == [abc2]  # no entry is of another
    assert [entry.get("commit") for entry in entries] == [None, None]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["baseline", "{results}", "--out", "{baseline}"],
            3,
            "is there already: reports",
        ),
        (["baseline", "{both}", "--out", "{new}"], 3, "the runs are of cpu, emu:64: name one"),
        (["baseline", "{both}", "--out", "{new}", "--device", "tpu"], 3, "no run has a checkpoint"),
        (["baseline", "{results}", "--out", "{new}/x"], 3, "cannot be written"),
        (["history", "accept", "{results}", "{baseline}", "--drop-gone"], 2, "needs --reason"),
        (["history", "accept", "{results}", "{baseline}", "--checkpoint", "["], 2, "'[' is no reg"),
        (["history", "accept", "{results}", "{results}"], 3, "its first line is of type 'run'"),
        (["history", "accept", "{results}", "{new}"], 3, "No such file"),
        (["history", "compare", "{new}", "{results}"], 3, "new.jsonl: there is no such file"),
    ],
)
def test_what_cannot_be_accepted_says_why(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"baseline": made(tmp_path, checkpoint()), "new": tmp_path / "new.jsonl"}
    paths["results"] = tmp_path / "first.jsonl"
    paths["both"] = write(tmp_path / "both.jsonl", checkpoint(), checkpoint(device="emu:64"))
    before = paths["baseline"].read_bytes()
    try:
        ended = main([word.format(**paths) for word in words])
    except SystemExit as error:
        ended = int(str(error.code))
    assert (ended, said in capsys.readouterr().err) == (code, True)
    assert paths["baseline"].read_bytes() == before and not paths["new"].exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"schema":2', '"schema":3', ":1: no baseline of accuracy: it has schema 3"),
        ('"checkpoint":"a",', "", ":2: a baseline's line lacks 'checkpoint'"),
        ('"E_T":0.001', '"E_T":"small"', ":2: no baseline of accuracy: 'small' is no number"),
        ('"golden"', '"golden', ":2: not JSON"),
        ('"fused":true', '"fused":1', ":2: no baseline of accuracy: fused is 1"),
    ],
)
def test_a_damaged_baseline_is_named(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = made(tmp_path, checkpoint("a"))
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=re.escape(f"{path}{said}")):
        baseline.read(path)


LIMITED = """
import resource, sys
from reports.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_leaves_the_old_baseline(tmp_path: Path) -> None:
    path = made(tmp_path, checkpoint("a"))
    results = write(tmp_path / "now.jsonl", checkpoint("a", error=1e-4, **OTHER))
    before = path.read_bytes()
    command = [sys.executable, "-c", LIMITED, "history", "accept", str(results), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 3
    assert f"{path}: cannot be written (File too large); it was left as it is" in done.stderr
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "baseline.jsonl",
        "first.jsonl",
        "now.jsonl",
    ]


WRITER = """
import sys
from itertools import cycle
from pathlib import Path
from reports.files import replace_text
for letter in cycle("abc"):
    replace_text(Path(sys.argv[1]), letter * 1_000_000)
    print(letter, flush=True)
"""


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path, chance = tmp_path / "baseline.jsonl", random.Random(3)
    for _ in range(8):
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline()
            time.sleep(chance.random() * 0.05)
            writer.kill()
        content = path.read_text()
        assert len(content) == 1_000_000 and len(set(content)) == 1


def test_acceptances_at_once_all_stay(tmp_path: Path) -> None:
    path = made(tmp_path, checkpoint("a"))
    files = [write(tmp_path / f"{i}.jsonl", checkpoint(f"n{i}")) for i in range(6)]
    command = [sys.executable, "-m", "reports", "history", "accept"]
    with ThreadPoolExecutor(6) as pool:
        done = pool.map(lambda f: subprocess.run([*command, str(f), str(path)], cwd=ROOT), files)
        assert [one.returncode for one in done] == [0] * 6
    names = {key.checkpoint for key in baseline.read(path).checkpoints}
    assert names == {"a", *(f"n{i}" for i in range(6))}


def test_a_link_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    replace_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
