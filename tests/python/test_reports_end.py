"""How any command of reports ends: what is written where, Ctrl-C, a reader that has read enough."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness_runs import ROOT
from sample_results import checkpoints, write

from reports.__main__ import main
from reports.commands import table
from reports.files import check_writable, replace_text

SPEED = "reports/baselines/nvidia-h200-speed.jsonl.xz"


def test_a_pipe_is_written_into_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    replace_text(pipe, "words")
    assert os.read(end, 100) == b"words"
    os.close(end)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_the_standard_output_of_a_pipeline_is_written_into(tmp_path: Path) -> None:
    words = ["render", "/dev/stdin", "--markdown", "/dev/stdout"]
    results = write(tmp_path / "results.jsonl", checkpoints(3)).read_text()
    command = [sys.executable, "-m", "reports", *words]
    done = subprocess.run(command, cwd=ROOT, input=results, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("## Nothing failed")


def test_what_could_not_be_written_is_known_before_the_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "new")
    check_writable(Path("/dev/null"))
    assert not list(tmp_path.iterdir())
    folder = tmp_path / "no ne"
    for write_to in (check_writable, lambda path: replace_text(path, "words")):
        with pytest.raises(FileNotFoundError) as raised:
            write_to(folder / "out")
        assert str(raised.value) == (
            f"{folder}/out: cannot be written: there is no folder {folder}; make it "
            f"(mkdir -p '{folder}') or name a file in another folder"
        )
    (tmp_path / "old").touch()
    check_writable(tmp_path / "old")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"{tmp_path}: cannot be written .Is a directory"):
        replace_text(tmp_path, "words")


def test_ctrl_c_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(table, "run", interrupted)
    assert main(["table", SPEED]) == 130
    assert capsys.readouterr().err == "reports: interrupted\n"


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "reports", "table", SPEED], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert run.stdout and run.stderr
    run.stdout.close()
    assert run.stderr.read() == ""
    assert run.wait() == 0
    run.stderr.close()
