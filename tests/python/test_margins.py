"""How far known bugs are from passing, as the command line tells it."""

from __future__ import annotations

from pathlib import Path

from harness_runs import command, verify


def test_margins_are_not_of_chains(tmp_path: Path) -> None:
    words = ("--device", "cpu", "--fixture", "fixtures/llama-a1", "--margins", "--mode")
    done = command(*words, "chained")
    assert done.returncode == 2 and done.stdout == ""
    assert "[--margins] are of single checkpoints: leave out --mode chained" in done.stderr
    run = verify(tmp_path, "--device", "cpu", "--fixture", "fixtures/llama-a1/decode-bf16",
                 "--margins", "--mode", "both")  # fmt: skip
    assert run.code == 0 and {bool(line["margins"]) for line in run.results if line["chain"]} == {
        False
    }
