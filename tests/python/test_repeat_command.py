"""The command that repeats a checkpoint has every option that its result depends on."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness_runs import ROOT, command, verify
from safetensors.numpy import save_file


def repeated(line: dict[str, Any], out: Path) -> list[dict[str, Any]]:
    """What the command of a result gives."""
    words = shlex.split(line["again"])
    variables = [word for word in words if word.startswith("PLUMB_")]
    assert words[len(variables)] == "harness"
    command(*words[len(variables) + 1 :], "--json", str(out))
    lines = [json.loads(text) for text in out.read_text().splitlines()]
    return [found for found in lines if found["type"] == "checkpoint"]


def same(found: dict[str, Any], line: dict[str, Any]) -> bool:
    return {**found, "seconds": 0} == {**line, "seconds": 0}


def test_it_repeats_what_was_asked_for(tmp_path: Path) -> None:
    options = ("--no-fuse", "--dtype", "f32", "--impl", "baseline|rms_norm", "--repeat", "3",
               "--threads", "1", "--margins")  # fmt: skip
    run = verify(tmp_path, "--device", "cpu", "--fixture", "fixtures/llama-a1/decode-bf16",
                 "--block", "rms_norm", *options)  # fmt: skip
    assert [
        same(found, run.results[1]) for found in repeated(run.results[1], tmp_path / "again")
    ] == [True]
    words = shlex.split(run.results[1]["again"])
    assert set(options) <= set(words)


def test_it_repeats_a_chain_with_its_shadow(tmp_path: Path) -> None:
    run = verify(tmp_path, "--device", "cpu", "--fixture", "fixtures/llama-a1/decode-bf16",
                 "--mode", "chained", "--shadow", "--threads", "1")  # fmt: skip
    (chain,) = run.results
    assert any(row["shadow"] != "nan" for row in chain["chain"]["rows"])
    assert [same(found, chain) for found in repeated(chain, tmp_path / "again")] == [True]


def test_it_repeats_what_was_judged_of_another_program(tmp_path: Path) -> None:
    checkpoint = "lm_head:softcap#0"
    command("export", "fixtures/gemma2-a4/whole-f32", str(tmp_path), "--checkpoint", "softcap#0")
    described = json.loads((tmp_path / "checkpoints.json").read_text())["checkpoints"][0]
    assert described["id"] == checkpoint
    made = np.zeros(described["outputs"]["out"]["shape"], np.float32)
    outputs = tmp_path / "my outputs.safetensors"
    save_file({f"{checkpoint}/out": made}, outputs)
    results = tmp_path / "results"
    command("judge", "fixtures/gemma2-a4/whole-f32", str(outputs), "--contract", "fused",
            "--json", str(results))  # fmt: skip
    line = json.loads(results.read_text().splitlines()[1])
    assert [same(found, line) for found in repeated(line, tmp_path / "again")] == [True]


def test_a_folder_with_a_space_is_one_word(tmp_path: Path) -> None:
    folder = tmp_path / "my recording's" / "whole"
    shutil.copytree(ROOT / "fixtures" / "gemma2-a4" / "whole-f32", folder, symlinks=False)
    for weights in (ROOT / "fixtures" / "gemma2-a4").glob("*.safetensors"):
        shutil.copy(weights, folder.parent)
    run = verify(tmp_path, "--device", "cpu", "--fixture", str(folder), "--block", "softcap")
    assert len(repeated(run.results[0], tmp_path / "again")) == 1


def test_variables_that_results_depend_on_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMB_ISA", "baseline")
    run = verify(tmp_path, "--device", "cpu", "--fixture", "fixtures/gemma2-a4/whole-f32",
                 "--block", "softcap")  # fmt: skip
    assert run.results[0]["again"].startswith("PLUMB_ISA=baseline harness --fixture ")
