"""Ratios of alternating runs: of the fastest deciles, case by case and round by round."""

from __future__ import annotations

from typing import Any

import pytest

from reports.__main__ import main
from reports.speed.turns import Ratio, Turn, origin, ratios, summary


def bench(case: str, p10: float, status: str = "pass") -> dict[str, Any]:
    return {"type": "bench", "case": case, "p10_us": p10, "status": status}


def rival(case: str, way: str, p10: float | None) -> dict[str, Any]:
    return {"type": "rival", "case": case, "way": way, "p10_us": p10}


def turn(ours: float, eager: float, compiled: float | None = None) -> Turn:
    theirs = [rival("add", "eager", eager), rival("add", "compile", compiled)]
    return Turn([bench("add", ours)], theirs)


def test_the_best_way_of_each_round_counts_and_the_middle_round() -> None:
    (found,) = ratios([turn(10, 8, 5), turn(10, 12), turn(10, 30, 20)])
    assert found == Ratio("add", "compile", [0.5, 1.2, 2.0])
    assert found.middle == 1.2


def test_what_one_side_lacks_or_is_wrong_has_no_ratio() -> None:
    ours = [bench("add", 1), bench("mul", 1, "fail"), bench("div", 1)]
    theirs = [rival("add", "eager", None), rival("mul", "eager", 2), rival("div", "eager", 3)]
    lacks = Turn(ours, theirs)
    assert [found.case for found in ratios([lacks])] == ["div"]
    assert ratios([lacks, turn(1, 1)]) == []
    assert ratios([]) == []


def test_the_summary_names_what_is_behind() -> None:
    found = [Ratio("add", "eager", [0.8, 0.9, 1.1]), Ratio("mul", "eager", [2.0, 3.0, 4.0])]
    assert summary("tiny", found) == [
        "tiny: ahead in 1 of 2 cases, in the median case 1.95x",
        "  add                 0.90x  (0.80 to 1.10)  of eager",
    ]
    assert summary("tiny", []) == ["tiny: ahead in 0 of 0 cases"]


def test_the_origin_names_machine_and_torch() -> None:
    run = {"type": "run", "devices": ["cpu: A, avx2, 1 thread"]}
    assert origin(Turn([run], [{"type": "rival_run", "torch": "2.13.0"}])) == [
        "cpu: A, avx2, 1 thread",
        "PyTorch 2.13.0",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--tokens", "1,x"], "'x' is no number above 0"), (["--rounds", "0"], "needs at least 1")],
)
def test_bad_words_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    with pytest.raises(SystemExit):
        main(
            [
                "turns",
                "--shape",
                "tiny",
                "--harness",
                "/bin/false",
                "--out",
                str(tmp_path / "o"),
                *words,
            ]
        )
    assert said in capsys.readouterr().err
