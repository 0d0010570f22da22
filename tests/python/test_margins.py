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


def test_every_report_tells_the_bug_nearest_to_passing(tmp_path: Path) -> None:
    junit, markdown = tmp_path / "junit", tmp_path / "markdown"
    run = verify(tmp_path, "--device", "cpu", "--fixture", "fixtures/gemma2-a4/decode-f32",
                 "--block", "causal_mask", "--margins", "-v", "--junit", str(junit),
                 "--markdown", str(markdown))  # fmt: skip
    bug, margin = "each query sees the next key", "0x the limit: would pass"
    first = next(line for line in run.results if bug in line["passing_bugs"])
    assert first["margins"][bug] == 0 and "causal" in first["blind_to"]
    assert f"nearest known bug: {bug}, {margin}" in run.stdout
    assert f"| causal_mask | {bug} | " in markdown.read_text()
    assert (
        f'<property name="margin of causal_mask: {bug}" value="{margin}, {first["checkpoint"]} f32"'
        in junit.read_text()
    )
