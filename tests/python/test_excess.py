"""ci/excess.py: the evidence for the limit of chained excess can be made again."""

from __future__ import annotations

import sys

import pytest
from harness_runs import ROOT, harness

sys.path.insert(0, str(ROOT / "ci"))
import excess


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["excess.py", *words])
    return excess.main()


@pytest.mark.nightly
def test_two_seeds_have_a_spread_for_each_block(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = run(monkeypatch, "--seeds", "2", "--harness", harness())
    printed = capsys.readouterr()
    assert code == 0, printed.err
    title, *rows = [line.split() for line in printed.out.splitlines()]
    assert title == ["n", "e^s", "largest", "over", "2", "expected"]
    counts = {(row[0], row[1]): int(row[2]) for row in rows}
    assert counts["step", "lm_head"] == 8 and counts["prompt", "lm_head"] == 2
    assert counts["step", "decoder_layer"] == 32
    assert all(0 < float(row[4]) < 4 for row in rows)


def test_one_seed_has_no_spread(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--seeds", "1")
    assert (ended.value.code, "needs at least 2" in capsys.readouterr().err) == (2, True)
