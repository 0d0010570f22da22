"""Recordings that are killed and go on: the same bytes as in one go, and what stands in the way."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import ROOT

from python_inspector import record, tiny
from python_inspector.cli import inspector as cli
from python_inspector.errors import RecordError, ResumeError
from python_inspector.format import journal, spool
from python_inspector.format.writer import RecordingWriter
from python_inspector.models.inputs import RunPlan, random_ids, run_model
from python_inspector.recorder import rerunner, spreads
from python_inspector.recorder.recorder import Recorder
from python_inspector.trace import spread, truncation

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")
CREATED = "2026-01-01T00:00:00Z"
GIVEN: dict[str, Any] = {"name": "test/run", "command": "inspector record", "created": CREATED}
GIVEN |= {"spread": 2, "bugs": False}
RUNS: dict[str, tuple[str, dict[str, Any], float]] = {
    "first": ("llama-a1", {}, 0.0),
    "middle": ("llama-a1", {}, 0.5),
    "last": ("llama-a1", {}, 1.0),
    "rows": ("gemma2", {"rows": 4, "whole_layers": (1,)}, 0.6),
    "chained": ("gemma2", {"chained": True}, 0.4),
    "leaves": ("gemma2", {"oracle": "leaves"}, 0.3),
    "no oracle": ("zamba2", {"oracle": False}, 0.7),
    "one layer": ("gemma2", {"spread": 0, "layers": (1,)}, 0.5),
    "without taps": (
        "mixtral",
        {"bugs": True, "oracle": "leaves", "layers": (1,), "tokens": 3},
        0.5,
    ),
}
"""What is recorded, and what part of it is finished when it is killed."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checkpoint is written to the journal as soon as it is finished."""
    monkeypatch.setattr(journal, "INTERVAL", 0.0)


def run(
    out: Path,
    name: str = "llama-a1",
    *,
    seed: int = 1,
    tokens: int = 11,
    change: Any = None,
    **options: Any,
) -> Recorder:
    model = tiny.build(name, torch.bfloat16, seed=1)
    if change is not None:
        change(model)
    ids = random_ids(1, tokens + 1, model.config.vocab_size, seed=seed)
    plan = RunPlan(ids, tokens, 1, cache="dynamic")
    with record(model, out, **(GIVEN | options)) as recorder:
        run_model(model, plan)
    return recorder


class Killed(BaseException):
    """As KeyboardInterrupt."""


def killed_at(monkeypatch: pytest.MonkeyPatch, point: int, action: Callable[[], None]) -> None:
    """`action` is done once so many checkpoints are finished, of which none waits for another."""
    monkeypatch.setattr(spreads, "MOST", 1)
    keep, kept = RecordingWriter.keep, 0

    def counted(self: RecordingWriter, *args: Any) -> None:
        nonlocal kept
        keep(self, *args)
        kept += 1
        if kept == point:
            action()

    monkeypatch.setattr(RecordingWriter, "keep", counted)


def stop() -> None:
    raise Killed


def killed(out: Path, point: int, name: str = "llama-a1", **options: Any) -> Path:
    """The partial folder of a recording that was interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, point, stop)
        with pytest.raises(Killed) as raised:
            run(out, name, resumable=True, **options)
    (partial,) = out.parent.glob(f".{out.name}.partial-*")
    assert f"{point} finished checkpoints are kept in {partial}" in raised.value.__notes__[0]
    assert not (out / "recording.json").exists()
    return partial


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def require_same(out: Path, reference: Path) -> None:
    assert files(out).keys() == files(reference).keys()
    for name, content in files(out).items():
        assert content == files(reference)[name], name
    assert not list(out.parent.glob(f".{out.name}.*"))


@pytest.mark.parametrize(("name", "options", "part"), RUNS.values(), ids=RUNS)
def test_it_has_the_bytes_of_a_recording_in_one_go(
    name: str, options: dict[str, Any], part: float, tmp_path: Path
) -> None:
    total = run(tmp_path / "r", name, **options).summary
    assert total is not None and total.taken_over == 0
    point = 1 + int(part * (total.checkpoints - 2))
    killed(tmp_path / "x", point, name, **options)
    summary = run(tmp_path / "x", name, resume=True, **options).summary
    assert summary is not None and summary.taken_over == point
    require_same(tmp_path / "x", tmp_path / "r")


def test_what_waits_for_its_statistics_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = run(tmp_path / "r").summary

    model = run_model

    def stopped(*args: Any) -> None:
        model(*args)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setitem(globals(), "run_model", stopped)
        run(tmp_path / "x", resumable=True)
    summary = run(tmp_path / "x", resume=True).summary
    assert summary is not None and total is not None
    assert summary.taken_over == total.checkpoints
    require_same(tmp_path / "x", tmp_path / "r")


def test_what_the_process_before_had_learnt_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which calls simulate kernels that truncate in one go with the others."""
    monkeypatch.setattr(truncation, "LEAST_TERMS", 16)
    run(tmp_path / "r")
    assert spread._truncate and '"truncated"' in (tmp_path / "r" / "recording.json").read_text()
    spread._truncate.clear()
    killed(tmp_path / "x", 60)
    spread._truncate.clear()
    run(tmp_path / "x", resume=True)
    require_same(tmp_path / "x", tmp_path / "r")


RESIDUALS = {"layers": (1,), "blocks": ("rms_norm", "add")}


@pytest.mark.parametrize(
    ("options", "point"), [({}, 2), ({}, 18), ({}, 19), ({}, 70), (RESIDUALS, 1)]
)
def test_large_payloads_lie_where_they_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], point: int
) -> None:
    """Hashed by threads, and left in place; number 18 is an attention, whose output is what 19
    takes in another shape."""
    for name in ("BESIDE", "IN_PLACE"):
        monkeypatch.setattr(spool, name, 1)
    monkeypatch.setattr(spool, "HEADER_ROOM", 1 << 17)
    run(tmp_path / "r", **options)
    header = json.loads((tmp_path / "r" / "recording.json").read_text())
    assert "header_sha256" in header["files"]["tensors"]
    assert bool(options) or any("payload_of" in entry for entry in header["tensors"].values())
    killed(tmp_path / "x", point, **options)
    summary = run(tmp_path / "x", resume=True, **options).summary
    assert summary is not None and summary.taken_over == point
    require_same(tmp_path / "x", tmp_path / "r")


def test_a_resumed_recording_is_killed_again(tmp_path: Path) -> None:
    run(tmp_path / "r")
    killed(tmp_path / "x", 30)
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 50, stop)
        with pytest.raises(Killed):
            run(tmp_path / "x", resume=True)
    recorder = run(tmp_path / "x", resume=True)
    assert recorder.summary is not None and recorder.summary.taken_over == 80
    require_same(tmp_path / "x", tmp_path / "r")


def test_what_is_finished_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No oracle, no simulated kernels of it, and no byte of it is written."""
    killed(tmp_path / "x", 100)
    seeds: list[str] = []
    real = rerunner.rerun

    def counted(outputs: Any, again: Any, seed: str, **options: Any) -> Any:
        seeds.append(seed)
        return real(outputs, again, seed, **options)

    monkeypatch.setattr(rerunner, "rerun", counted)
    recorder = run(tmp_path / "x", resume=True)
    every = json.loads((tmp_path / "x" / "recording.json").read_text())["checkpoints"]
    done = {checkpoint["id"] for checkpoint in every[:100]}
    assert seeds and not done & set(seeds)
    assert recorder.summary is not None and recorder.summary.checkpoints == len(every)


RECORD = "record --model tiny:llama-a1 --dtype bf16 --tokens 9 --steps 1 --spread 2 --name test/run"
KILLED = """
import os, signal, sys
from python_inspector.cli import inspector as cli
from python_inspector.format import journal
from python_inspector.format.writer import RecordingWriter
from python_inspector.recorder import spreads
journal.INTERVAL, spreads.MOST, keep, kept = 0.0, 1, RecordingWriter.keep, []
def counted(*args):
    keep(*args)
    kept.append(args)
    if len(kept) == int(sys.argv[1]):
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
RecordingWriter.keep = counted
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
sys.exit(cli.main(sys.argv[3:]))
"""


@pytest.mark.parametrize(("point", "by"), [(40, "SIGKILL"), (100, "SIGTERM"), (90, "SIGINT")])
def test_a_process_that_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], point: int, by: str
) -> None:
    words = [*RECORD.split(), "--out", str(tmp_path / "r")]
    assert cli.main(words) == 0
    whole = files(tmp_path / "r")
    (tmp_path / "r").rename(tmp_path / "whole")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(point), by, *words],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == (130 if by == "SIGINT" else -getattr(signal, by))
    capsys.readouterr()
    assert cli.main([*words, "--resume"]) == 0
    said = capsys.readouterr().out
    assert "checkpoints are finished in" in said and "taken over), " in said
    again = files(tmp_path / "r")
    for name, content in again.items():
        mine, theirs = (
            [line for line in text.splitlines() if not line.startswith(b'  "created"')]
            for text in (content, whole[name])
        )
        assert mine == theirs, name


def fill_disk(patch: pytest.MonkeyPatch, payloads: int) -> None:
    """It is full after so many."""
    patch.setattr(spreads, "MOST", 1)
    real, written = os.pwrite, 0

    def full(*args: Any) -> int:
        nonlocal written
        written += 1
        if written > payloads:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    patch.setattr(os, "pwrite", full)


def test_a_full_disk_leaves_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "r")
    fill_disk(monkeypatch, payloads=90)
    with pytest.raises(OSError, match="No space left") as raised:
        run(tmp_path / "x", resumable=True)
    assert "finished checkpoints are kept" in raised.value.__notes__[-1]
    monkeypatch.undo()
    summary = run(tmp_path / "x", resume=True).summary
    assert summary is not None and summary.taken_over > 20
    require_same(tmp_path / "x", tmp_path / "r")


def test_a_process_that_is_killed_while_it_puts_the_recording_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "IN_PLACE", 1)
    monkeypatch.setattr(spool, "HEADER_ROOM", 1 << 17)
    run(tmp_path / "r")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "python_inspector.format.writer.RecordingWriter._save_json", lambda *_: stop()
        )
        with pytest.raises(Killed):
            run(tmp_path / "x", resumable=True)
    summary = run(tmp_path / "x", resume=True).summary
    assert summary is not None and summary.taken_over == summary.checkpoints
    require_same(tmp_path / "x", tmp_path / "r")


def twice_the_weight(name: str) -> Callable[[torch.nn.Module], None]:
    def change(model: torch.nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter(name).mul_(2)

    return change


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another option": ({"spread": 3}, r"\.journal: run\.options\.spread is 2, this run has 3"),
    "another model": ({"name": "gemma2"}, r"\.journal: run\.config\.\w+ is .*, this run has "),
    "other ids": ({"seed": 2}, r"embed_tokens#0: input ids has SHA-256 \w+, in the run before"),
    "a weight that is used": (
        {"change": twice_the_weight("model.layers.0.mlp.up_proj.weight")},
        r"\.journal: weights_sha256 is \w{64}, this run has \w{64}: resume with the weights",
    ),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_another_run_is_refused_and_can_still_be_resumed(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    run(tmp_path / "r")
    killed(tmp_path / "x", 130)
    with pytest.raises(ResumeError, match=message):
        run(tmp_path / "x", resume=True, **options)
    summary = run(tmp_path / "x", resume=True).summary
    assert summary is not None and summary.taken_over == 130
    require_same(tmp_path / "x", tmp_path / "r")


def test_a_recording_that_still_runs_is_left_alone(tmp_path: Path) -> None:
    model = tiny.build("llama-a1")
    with (
        record(model, tmp_path / "x", resumable=True),
        pytest.raises(ResumeError, match="still runs"),
        record(model, tmp_path / "x", resume=True),
    ):
        pass


def test_without_resume_what_is_left_goes(tmp_path: Path) -> None:
    killed(tmp_path / "x", 30)
    summary = run(tmp_path / "x").summary
    assert summary is not None and summary.taken_over == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_journal_without_its_first_line_is_nothing_to_resume(tmp_path: Path) -> None:
    run(tmp_path / "r")
    partial = killed(tmp_path / "x", 30)
    journal_file = partial / ".journal"
    journal_file.write_bytes(journal_file.read_bytes()[:50])
    summary = run(tmp_path / "x", resume=True).summary
    assert summary is not None and summary.taken_over == 0
    require_same(tmp_path / "x", tmp_path / "r")


def test_a_run_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:

        def refuse() -> None:
            raise RecordError("no")

        killed_at(patch, 30, refuse)
        with pytest.raises(RecordError, match="no"):
            run(tmp_path / "x", resumable=True)
    assert list(tmp_path.iterdir()) == []


def test_with_nothing_to_resume_it_begins_or_says_that_it_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*RECORD.split(), "--layers", "0", "--out", str(tmp_path / "r")]
    assert cli.main([*words, "--resume"]) == 0
    assert "nothing to resume beside" in capsys.readouterr().out
    before = files(tmp_path / "r")
    assert cli.main([*words, "--resume"]) == 0
    assert "is finished (--overwrite in place" in capsys.readouterr().out
    assert cli.main([*words, "--spread", "3", "--resume"]) == 2
    assert "was made by another command" in capsys.readouterr().err
    assert files(tmp_path / "r") == before


@pytest.mark.parametrize("part", [0.1, 0.4, 0.7, 0.9])
def test_what_a_layer_loses_by_truncation_does_not_depend_on_which_of_its_parts_are_made_again(
    part: float, tmp_path: Path, truncating_accelerator: list[Any]
) -> None:
    total = run(tmp_path / "r").summary
    assert total is not None
    made = len(truncating_accelerator)
    point = 1 + int(part * (total.checkpoints - 2))
    killed(tmp_path / "x", point)
    run(tmp_path / "x", resume=True)
    require_same(tmp_path / "x", tmp_path / "r")
    truncating_accelerator.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncation, "_NEAR", -1.0)
        run(tmp_path / "apart")
    assert made < 0.7 * len(truncating_accelerator)
