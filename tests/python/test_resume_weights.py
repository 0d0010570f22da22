"""A recording that was killed, and weights that are not those that it was begun with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness_runs import ROOT
from test_resume import KILLED, at_once, killed, require_same, run, twice_the_weight  # noqa: F401

from python_inspector import tiny
from python_inspector.cli import inspector as cli
from python_inspector.errors import ResumeError
from python_inspector.format.safetensors_file import read_header
from python_inspector.format.writer import RecordingWriter
from python_inspector.recorder import provenance

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")
LAST = "model.layers.1.mlp.up_proj.weight"
"""No checkpoint of the first layer uses it."""


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the files of the model that `run` runs."""
    tiny.build("llama-a1", torch.bfloat16, seed=1).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def one_element(path: Path) -> None:
    """Another value, but size and time as before."""
    before, header = path.stat(), read_header(path)
    at = header.payload + header.tensors[LAST].begin
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (len(data), before.st_mtime_ns)


def changed_in_memory(model: torch.nn.Module) -> None:
    twice_the_weight(LAST)(model)


@pytest.mark.parametrize("copied", [[], ["--copy-weights"]])
def test_a_changed_file_is_refused_though_nothing_finished_uses_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], copied: list[str]
) -> None:
    words = f"record --model {folder} --tokens 7 --spread 2 --no-bugs --out {tmp_path / 'x'}"
    words = [*words.split(), *copied]
    done = subprocess.run([sys.executable, "-c", KILLED, "8", "SIGKILL", *words], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    one_element(file)
    assert cli.main([*words, "--resume"]) == 3
    said = capsys.readouterr().err
    assert re.search(r"/\.journal: weights_sha256 is \w{64}, this run has \w{64}", said), said
    named = rf"\(weights\.{file}\.changed_ns is \d+, this run has \d+\): resume with the weights"
    assert copied or re.search(named, said), said
    assert "finished checkpoints are kept" in said
    file.write_bytes(whole)
    assert cli.main([*words, "--resume"]) == 0
    assert "taken over" in capsys.readouterr().out


def test_a_file_that_was_only_touched_is_no_other(folder: Path, tmp_path: Path) -> None:
    run(tmp_path / "r", model_folder=folder)
    killed(tmp_path / "x", 30, model_folder=folder)
    os.utime(folder / "model.safetensors")
    summary = run(tmp_path / "x", resume=True, model_folder=folder).summary
    assert summary is not None and summary.taken_over == 30
    require_same(tmp_path / "x", tmp_path / "r")


def test_a_changed_file_is_refused_where_the_hash_was_not_known_by_then(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RecordingWriter, "weights_are", lambda *_: None)
        killed(tmp_path / "x", 8, model_folder=folder)
    one_element(folder / "model.safetensors")
    message = r"model\.safetensors\.changed_ns is \d+, this run has \d+, and it was killed"
    with pytest.raises(ResumeError, match=message):
        run(tmp_path / "x", resume=True, model_folder=folder)


def test_of_a_large_model_nothing_is_hashed_before_the_run_or_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its files nor its weights, where the files are as they were."""
    monkeypatch.setattr(provenance, "BESIDE", 0)
    begun: list[str] = []
    real = RecordingWriter.require_weights

    def require(self: RecordingWriter, sha256: Callable[[], str]) -> None:
        def waited() -> str:
            begun.append("waited")
            return sha256()

        real(self, waited)

    monkeypatch.setattr(RecordingWriter, "require_weights", require)
    run(tmp_path / "r", model_folder=folder)
    killed(tmp_path / "x", 60, model_folder=folder)
    (journal,) = tmp_path.glob(".x.partial-*/.journal")
    assert re.search(rb'"weights_sha256":"\w{64}"', journal.read_bytes())
    run(tmp_path / "x", resume=True, model_folder=folder)
    assert begun == []
    require_same(tmp_path / "x", tmp_path / "r")


@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "lm_head.weight"])
def test_a_weight_that_is_used_is_compared_where_nothing_else_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(RecordingWriter, "weights_are", lambda *_: None)
    killed(tmp_path / "x", 130)
    with pytest.raises(ResumeError, match=r"SHA-256 \w+, in the run before it was \w+: "):
        run(tmp_path / "x", resume=True, change=twice_the_weight(name))


def test_weights_changed_in_memory_are_refused_though_nothing_finished_uses_them(
    tmp_path: Path,
) -> None:
    killed(tmp_path / "x", 8)
    with pytest.raises(ResumeError, match="weights_sha256 is"):
        run(tmp_path / "x", resume=True, change=changed_in_memory)
    summary = run(tmp_path / "x", resume=True).summary
    assert summary is not None and summary.taken_over == 8
