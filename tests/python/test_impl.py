"""Implementations by name: what --impl forces, what results say, which ones no recording runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness_runs import command, verify

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
    run = verify(tmp_path, *SMALL, "--impl", "linear/gemv")
    assert run.code == 4
    assert {result["status"] for result in run.results} == {"unsupported"}
    assert '[linear] --impl "linear/gemv" leaves no implementation' in run.stdout


def test_a_name_that_no_implementation_has(tmp_path: Path) -> None:
    run = verify(tmp_path, *SMALL, "--impl", "cublaslt")
    assert run.code == 2
    assert "--impl" in run.stderr and "is found in no implementation of cpu" in run.stderr


def test_of_several_devices_those_that_have_it_run_it(tmp_path: Path) -> None:
    options = ("--device", "cpu,oracle", *SMALL[2:], "--dtype", "f32")
    run = verify(tmp_path, *options, "--impl", "linear/blocked.baseline")
    assert run.code == 0, run.stdout + run.stderr
    assert "is found in no implementation of oracle, which chooses freely" in run.stderr
    forced = [result["impl"] for result in run.results if result["device"] == "cpu"]
    assert forced and all(names == ["linear/blocked.baseline"] for names in forced)
    assert any(result["device"] == "oracle" for result in run.results)


@pytest.mark.parametrize("words", [(), ("bench", "--shape", "tiny"), ("compare-devices",)])
def test_an_empty_name_is_refused(words: tuple[str, ...]) -> None:
    done = command(*words, "--device", "cpu,oracle", "--impl", "")
    assert done.returncode == 2
    assert "[--impl] is empty" in done.stderr


def rows_of_support(*options: str) -> tuple[int, dict[str, str]]:
    done = command("support", "--impl", *options)
    return done.returncode, {line.split()[0]: line for line in done.stdout.splitlines()[2:]}


def test_support_says_what_no_recording_runs() -> None:
    code, rows = rows_of_support(*SMALL[:-2])
    assert code == 1
    assert rows["layer_norm/baseline"].endswith("NO RECORDING RUNS IT")
    assert rows["linear/blocked.baseline"].endswith("only when forced")


def test_support_of_a_block_keeps_to_the_ops_that_it_runs() -> None:
    _, rows = rows_of_support(*SMALL)
    assert {name.split("/")[0] for name in rows} == {"linear"}
