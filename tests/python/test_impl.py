"""Implementations by name: what --impl forces, what results say, which ones no recording runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness_runs import ROOT, harness, verify

SMALL = ("--device", "cpu", "--fixture", "fixtures/llama-a1/whole-f32", "--block", "linear")


def test_results_name_what_was_forced(tmp_path: Path) -> None:
    run = verify(tmp_path, *SMALL, "--impl", "linear/blocked.baseline")
    assert run.code == 0, run.stdout + run.stderr
    assert run.results
    assert all(result["impl"] == ["linear/blocked.baseline"] for result in run.results)


def test_other_ops_are_free(tmp_path: Path) -> None:
    options = (*SMALL[:-1], "glu_mlp", "--impl", "linear/blocked.baseline")
    names = {name for result in verify(tmp_path, *options).results for name in result["impl"]}
    assert {name for name in names if name.startswith("linear/")} == {"linear/blocked.baseline"}
    assert len(names) > 1


def test_a_case_that_the_forced_one_cannot_compute_is_unsupported(tmp_path: Path) -> None:
    run = verify(tmp_path, *SMALL, "--impl", "linear/few_rows")
    assert run.code == 4
    assert {result["status"] for result in run.results} == {"unsupported"}
    assert '[linear] --impl "linear/few_rows" leaves no implementation' in run.stdout


def test_a_name_that_no_implementation_has(tmp_path: Path) -> None:
    run = verify(tmp_path, *SMALL, "--impl", "cublaslt")
    assert run.code == 2
    assert "--impl" in run.stderr and "is found in no implementation of cpu" in run.stderr


def test_support_says_what_no_recording_runs() -> None:
    command = [harness(), "support", "--impl", *SMALL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    rows = {line.split()[0]: line for line in done.stdout.splitlines()[2:]}
    assert rows["rms_norm/baseline"].endswith("NO RECORDING RUNS IT")
    assert rows["linear/blocked.baseline"].endswith("only when forced")
