"""Reports that cannot be written: an error with the reason, and no file that looks complete."""

from __future__ import annotations

import itertools
import json
import resource
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from harness_runs import ROOT, command, harness

FIXTURE = ROOT / "fixtures" / "gemma2-a4" / "whole-f32"
WORDS = ("--device", "cpu", "--fixture", str(FIXTURE), "--block", "softcap", "--no-worker")
RUN = (*WORDS, "--threads", "1")


def ended(*words: str, room: int | None = None) -> tuple[int, str]:
    """The exit code and the last words of a run, of which no file may grow beyond `room` bytes."""

    def limit() -> None:
        if room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    done = subprocess.run(
        [harness(), *words], cwd=ROOT, preexec_fn=limit, capture_output=True, text=True,
        timeout=120, check=False, restore_signals=False,  # a limit's signal would kill it
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown"])
def test_a_full_device_is_an_error_of_the_file(option: str) -> None:
    code, said = ended(*RUN, option, "/dev/full")
    assert code == 2
    assert "/dev/full: cannot be written: No space left on device (after " in said
    assert "unchanged" not in said


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown", "--journal"])
def test_a_full_disk_is_an_error_of_the_file_and_leaves_none(option: str, tmp_path: Path) -> None:
    path = tmp_path / "report"
    code, said = ended(*RUN, option, str(path), room=200)
    assert code == 2
    assert f"{path}: cannot be written" in said and "File too large" in said
    # A journal keeps its whole records, of which there is none yet.
    left = [file.stat().st_size for file in tmp_path.iterdir()]
    assert left == ([0] if option == "--journal" else [])


FORWARD = ("forward", "--model", "tiny", "--tokens", "5,9,14", "--device", "cpu")


@pytest.mark.parametrize("words", [RUN, ("devices",), FORWARD])
def test_words_that_are_lost_do_not_end_well(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [harness(), *words], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "[stdout] cannot be written to its end" in done.stderr


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown"])
def test_a_report_without_a_place_is_refused_before_anything_runs(
    option: str, tmp_path: Path
) -> None:
    path = tmp_path / "missing" / "report"
    done = command(*RUN, option, str(path))
    assert done.returncode == 2 and done.stdout == ""
    assert f"{path}: cannot be created: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [(FORWARD, "--json"), (FORWARD, "--out"), (("generate", *FORWARD[1:]), "--json"),
     (("bench", "--model", "/nowhere", "--device", "cpu"), "--json")],
)  # fmt: skip
def test_a_model_does_not_run_for_a_file_without_a_place(
    words: tuple[str, ...], option: str, tmp_path: Path
) -> None:
    done = command(*words, option, str(tmp_path / "missing" / "x"))
    assert done.returncode == 2 and done.stdout == ""
    assert "x: cannot be created: No such file or directory" in done.stderr


def test_logits_are_there_though_the_report_is_lost(tmp_path: Path) -> None:
    done = command(*FORWARD, "--json", "/dev/full", "--out", str(tmp_path / "logits"))
    assert done.returncode == 2 and "next token" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["logits"]


OUTPUTS = ("--log", "--journal", "--json", "--junit", "--markdown")


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(OUTPUTS, 2)))
def test_two_outputs_in_one_file_are_refused(first: str, second: str, tmp_path: Path) -> None:
    path = tmp_path / "report"
    done = command(*RUN, first, str(path), second, f"{tmp_path}/./report")
    assert done.returncode == 2 and done.stdout == ""
    assert f"[{second}] {tmp_path}/./report is the file that {first} {path} writes" in done.stderr
    assert not list(tmp_path.iterdir())


def test_what_keeps_nothing_takes_every_report() -> None:
    words = [word for option in OUTPUTS if option != "--journal" for word in (option, "/dev/null")]
    assert command(*RUN, *words).returncode == 0


def test_reports_on_stdout_are_behind_what_it_has(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("w") as stdout:
        stdout.write("first\n")
        stdout.flush()
        done = subprocess.run(
            [harness(), *RUN, "--json", "/dev/stdout"], cwd=ROOT, stdout=stdout, check=False
        )
    lines = out.read_text().splitlines()
    assert done.returncode == 0 and lines[0] == "first"
    assert [json.loads(line)["type"] for line in lines if line.startswith("{")] == [
        "run", "checkpoint", "summary",
    ]  # fmt: skip
    assert "1 pass" in lines[-1]


def test_a_run_goes_on_without_a_report_that_is_lost(tmp_path: Path) -> None:
    junit, markdown = tmp_path / "junit", tmp_path / "markdown"
    done = command(*RUN, "--json", "/dev/full", "--junit", str(junit), "--markdown", str(markdown))
    why = "--json is incomplete: [write] /dev/full: cannot be written: No space left on device"
    assert done.returncode == 2
    assert done.stdout.startswith("block") and why in done.stdout.splitlines()[-1]
    assert done.stderr.count(why) == 1
    assert "(exit code 2)" in markdown.read_text()
    assert ElementTree.parse(junit).getroot().get("failures") == "1"


def test_a_benchmark_without_its_report_has_its_table() -> None:
    done = command("bench", "--shape", "tiny", "--block", "rms_norm", "--device", "cpu",
                   "--tokens", "4", "--seconds", "0", "--json", "/dev/full")  # fmt: skip
    assert done.returncode == 2 and "rms_norm" in done.stdout
    assert "[write] /dev/full: cannot be written" in done.stderr.splitlines()[-1]


def test_an_export_says_what_it_cannot_write(tmp_path: Path) -> None:
    words = ("export", str(FIXTURE), "--checkpoint", "softcap#0")
    code, said = ended(*words, "/dev/full")
    assert (
        code == 2 and "[export] /dev/full: cannot be created as a folder: Not a directory" in said
    )
    code, said = ended(*words, str(tmp_path), room=100)
    assert code == 2
    assert f"{tmp_path}/tensors.safetensors: cannot be written: File too large" in said
    assert not list(tmp_path.iterdir())


def test_a_log_on_a_full_disk_goes_on_where_it_is_seen() -> None:
    code, said = ended(*RUN, "--log", "/dev/full", "--log-level", "debug")
    lines = said.splitlines()
    assert code == 2
    assert lines[0] == (
        "error: [log] /dev/full: cannot be written: No space left on device; the log continues here"
    )
    assert len(lines) == 2 and lines[1].startswith("debug: cpu: ")


def test_a_log_that_cannot_be_opened_is_a_usage_error(tmp_path: Path) -> None:
    code, said = ended(*RUN, "--log", str(tmp_path))
    assert code == 2 and f"cannot open {tmp_path} for writing" in said


def a_copy(tmp_path: Path) -> Path:
    recording = tmp_path / "recording"
    shutil.copytree(FIXTURE, recording)
    shutil.copy(FIXTURE.parent / "weights-f32.safetensors", tmp_path)
    return recording


def test_a_recording_is_not_written_over(tmp_path: Path) -> None:
    recording = a_copy(tmp_path)
    before = {file: file.read_bytes() for file in recording.iterdir()}
    code, said = ended("export", str(recording), str(recording))
    assert code == 2 and f"[export] {recording}: is a recording" in said
    for file in before:
        code, said = ended(*RUN, "--json", str(file))
        assert code == 2 and f"[--json] {file} is part of a recording" in said
    tensors = str(recording / "tensors.safetensors")
    code, said = ended("forward", "--model", str(recording), "--tokens", "1,2", "--out", tensors)
    assert code == 2 and f"[--out] {tensors} is part of a recording" in said
    assert before == {file: file.read_bytes() for file in recording.iterdir()}


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs.st"
    outputs.write_bytes(b"kept")
    code, said = ended("judge", str(FIXTURE), str(outputs), "--json", str(outputs))
    assert code == 2 and f"[--json] {outputs} is the file that outputs {outputs} reads" in said
    code, said = ended(*RUN, "--plugin", str(outputs), "--junit", str(outputs))
    assert code == 2 and f"is the file that --plugin {outputs} reads" in said
    assert outputs.read_bytes() == b"kept"


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown", "--log", "--journal"])
def test_an_output_without_a_name_is_refused(option: str) -> None:
    words = (option, "", *RUN) if option == "--log" else (*RUN, option, "")
    code, said = ended(*words)
    assert code == 2 and f"[{option}] is empty; name a file" in said


def test_options_in_front_of_a_command_that_they_would_not_reach_are_refused() -> None:
    code, said = ended("--device", "cpu", "devices")
    assert code == 2
    assert "[--device] precedes devices, where it has no effect" in said
    assert ended("--log-level", "debug", "devices")[0] == 0
