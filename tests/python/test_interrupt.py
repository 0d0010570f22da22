"""Ctrl-C and SIGTERM: what was judged is written, complete and valid, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from harness_runs import ROOT, harness

FIRST = "fixtures/llama-a1/whole-f32"


def interrupted(words: tuple[str, ...], by: signal.Signals) -> subprocess.Popen[str]:
    """A run in a session of its own, all of which gets the signal once it has said something."""
    run = subprocess.Popen(
        [harness(), *words], cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert run.stdout
    run.stdout.readline()
    os.killpg(run.pid, by)
    return run


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_what_was_judged_is_reported(plugins: Path, tmp_path: Path, by: signal.Signals) -> None:
    json_file, junit, markdown = (tmp_path / name for name in ("a.jsonl", "a.xml", "a.md"))
    hanging = str(plugins / "hostile_hangs_later.so")
    run = interrupted(
        ("-v", "--device", "cpu", "--block", "rms_norm", "--fixture", FIRST, "--plugin", hanging,
         "--json", str(json_file), "--junit", str(junit), "--markdown", str(markdown)), by,
    )  # fmt: skip
    output, errors = run.communicate(timeout=60)
    assert run.returncode == 128 + by, output + errors
    lines = [json.loads(line) for line in json_file.read_text().splitlines()]
    summary = lines[-1]
    assert summary["type"] == "summary" and summary["interrupted"] == by.name
    assert summary["exit_code"] == 128 + by
    judged = [line for line in lines if line["type"] == "checkpoint"]
    assert len(judged) == summary["checkpoints"] == 1
    assert summary["verdict"].startswith(f"interrupted by {by.name} after 1 of ")
    assert summary["verdict"] in output
    suites = ElementTree.parse(junit).getroot()
    assert by.name in ElementTree.tostring(suites, encoding="unicode")
    assert f"interrupted by {by.name}" in markdown.read_text()
    assert not list(tmp_path.glob("*.partial"))


def test_a_command_in_a_worker_ends_at_once(plugins: Path) -> None:
    hanging = str(plugins / "hostile_hangs_later.so")
    words = ("generate", "--model", "tiny", "--tokens", "5", "--dtype", "f32", "--device", "cpu")
    run = subprocess.Popen(
        [harness(), *words, "--plugin", hanging], cwd=ROOT, text=True, stderr=subprocess.PIPE
    )
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(timeout=2)
    run.terminate()
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 143
    assert errors == "harness: interrupted by SIGTERM\n"
