"""ci/excess.py: the evidence for the limit of chained excess can be made again."""

from __future__ import annotations

import subprocess
import sys

from harness_runs import ROOT, harness


def excess(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "ci/excess.py", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_two_seeds_have_a_spread_for_each_block() -> None:
    done = excess("--seeds", "2", "--harness", harness())
    assert done.returncode == 0, done.stderr
    title, *rows = [line.split() for line in done.stdout.splitlines()]
    assert title == ["n", "e^s", "largest", "over", "2", "expected"]
    counts = {(row[0], row[1]): int(row[2]) for row in rows}
    assert counts["step", "lm_head"] == 8 and counts["prompt", "lm_head"] == 2
    assert counts["step", "decoder_layer"] == 32
    assert all(0 < float(row[4]) < 4 for row in rows)


def test_one_seed_has_no_spread() -> None:
    done = excess("--seeds", "1")
    assert (done.returncode, "needs at least 2" in done.stderr) == (2, True)
