"""`harness --journal`: a run that was killed continues, and its reports have the same bytes."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest
from harness_runs import ROOT, harness

FIXTURES = [
    "--fixture",
    "fixtures/llama-a1/decode-bf16",
    "--fixture",
    "fixtures/llama-a1/whole-f32",
]
SMALL = ["--checkpoint", "model.norm#", "--repeat", "1", "--device", "cpu,oracle"]
REPORTS = ("results.jsonl", "junit.xml", "summary.md")


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """One run with all reports and a journal, each under the same name whatever the folder."""
    return subprocess.run(command(*options), cwd=linked(folder), capture_output=True, text=True)


def command(*options: str) -> list[str]:
    results, junit, summary = REPORTS
    return [
        harness(), *FIXTURES, *(options or SMALL), "--no-times", "--journal", "journal",
        "--json", results, "--junit", junit, "--markdown", summary,
    ]  # fmt: skip


def linked(folder: Path) -> Path:
    """The folder, in which the project's recordings have the same relative names as everywhere."""
    folder.mkdir(exist_ok=True)
    if not (folder / "fixtures").exists():
        (folder / "fixtures").symlink_to(ROOT / "fixtures")
    return folder


def reports(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in REPORTS]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(folder).returncode == 0
    return folder


def records(journal: bytes) -> list[int]:
    """Where each record ends, the header first."""
    ends, at = [], journal.index(b"\n") + 1
    while at < len(journal):
        at += 8 + 64 + int.from_bytes(journal[at : at + 8], "little")
        ends.append(at)
    return ends


def test_a_run_killed_at_any_write_of_the_journal_gives_the_same_reports(
    tmp_path: Path, whole: Path
) -> None:
    journal = (whole / "journal").read_bytes()
    ends = records(journal)
    assert len(ends) > 5
    for index, end in enumerate(ends):
        torn = (0, 5, 100)[index % 3]  # bytes of the record that was being written
        folder = linked(tmp_path / f"{index}")
        (folder / "journal").write_bytes(journal[: end + torn])
        done = run(folder)
        assert done.returncode == 0, done.stderr
        assert reports(folder) == reports(whole)
        assert (folder / "journal").read_bytes()[:end] == journal[:end]
        assert len(records((folder / "journal").read_bytes())) == len(ends)


def test_a_run_killed_again_and_again_gives_the_same_reports(tmp_path: Path, whole: Path) -> None:
    chance = random.Random(7)
    folder = linked(tmp_path / "killed")
    longest, kills = 0.5, 0
    while kills < 100:
        began = time.monotonic()
        process = subprocess.Popen(
            command(), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(chance.uniform(0, longest))
            longest = 0.9 * (time.monotonic() - began)  # it came to its end: kill the next sooner
            assert process.returncode == 0
            assert reports(folder) == reports(whole)
            (folder / "journal").unlink()
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    assert run(folder).returncode == 0
    assert reports(folder) == reports(whole)


def test_a_finished_journal_answers_without_running_anything(tmp_path: Path, whole: Path) -> None:
    folder = linked(tmp_path / "again")
    (folder / "journal").write_bytes((whole / "journal").read_bytes())
    before = (folder / "journal").stat()
    assert run(folder).returncode == 0
    assert reports(folder) == reports(whole)
    assert (folder / "journal").stat().st_mtime_ns == before.st_mtime_ns


def test_another_runs_journal_is_refused_with_what_differs(tmp_path: Path, whole: Path) -> None:
    folder = linked(tmp_path / "other")
    journal = (whole / "journal").read_bytes()
    (folder / "journal").write_bytes(journal)
    done = run(folder, *SMALL[:-1], "oracle,emu:32", "--dtype", "f32")
    assert done.returncode == 2
    for difference in (
        "is of another run",
        'dtype was not there, is "f32"',
        'device cpu was "cpu: ',
        "device emu:32 was not there",
        "repeat that run's command, or remove the file",
    ):
        assert difference in done.stderr
    assert (folder / "journal").read_bytes() == journal
    assert not (folder / REPORTS[0]).exists()


def test_a_journal_goes_with_chains_and_shards(tmp_path: Path) -> None:
    options = ["--mode", "both", "--shard", "1/2", "--device", "cpu", "--repeat", "1"]
    whole, cut = linked(tmp_path / "whole"), linked(tmp_path / "cut")
    done = run(whole, *options)
    assert done.returncode == 0, done.stderr
    journal = (whole / "journal").read_bytes()
    ends = records(journal)
    (cut / "journal").write_bytes(journal[: ends[len(ends) // 2]])
    assert run(cut, *options).returncode == 0
    assert reports(cut) == reports(whole)
