"""reports history compare: every rule, at its border."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from history_runs import OCTAVES, RUN, SUMMARY, checkpoint, output, write

from reports.__main__ import main
from reports.history.compare import Comparison, Kind, compare
from reports.history.results import read_results
from reports.history.significance import mann_whitney, sign_test
from reports.history.words import in_words
from reports.terminal import printable

OTHER = "c" * 64


def compared(tmp_path: Path, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Comparison:
    sides = write(tmp_path / "old.jsonl", *old), write(tmp_path / "new.jsonl", *new)
    return compare(*map(read_results, sides))


def one(tmp_path: Path, old: dict[str, Any], new: dict[str, Any]) -> tuple[Kind, str]:
    finding = compared(tmp_path, [old], [new | {"output_sha256": OTHER}]).findings[0]
    return finding.kind, "; ".join(finding.reasons)


def moved(share: float) -> list[int]:
    """The histogram with a share of its 50 in octave 4 two octaves higher."""
    counts = list(OCTAVES)
    counts[4] -= round(50 * share)
    counts[6] += round(50 * share)
    return counts


def test_the_same_bits_are_unchanged_whatever_the_figures(tmp_path: Path) -> None:
    found = compared(tmp_path, [checkpoint(error=1e-3)], [checkpoint(error=1.0)])
    assert [finding.kind for finding in found.findings] == [Kind.UNCHANGED]
    assert not found.got_worse and found.comparable == 1


@pytest.mark.parametrize(
    ("old", "new", "kind", "words"),
    [
        (output(1e-3), output(1.5e-3), Kind.WITHIN, ""),
        (output(1e-3), output(1.51e-3), Kind.WORSE, "out: E_T 0.001 to 0.00151 (1.51x), allowed"),
        (output(1.51e-3), output(1e-3), Kind.BETTER, "out: E_T 0.00151 to 0.001"),
        (output(0.0), output(1e-9), Kind.WORSE, "E_T 0 to 1e-09, allowed"),
        (output(1e-3), output("nan"), Kind.WORSE, "E_T 0.001 to nan"),
        (output("nan"), output(1e-3), Kind.BETTER, "E_T nan to 0.001"),
        (output(families={"tile": 1.0}), output(families={"tile": 1.6}), Kind.WORSE,
         "out: tile 1 to 1.6 (1.6x), allowed 1.5x"),
        (output(gain=9e-5), output(gain=-2e-4), Kind.WORSE, "gain 9e-05 to 0.0002"),
        (output(gain=2e-5), output(gain=9.9e-5), Kind.WITHIN, ""),  # below 0.1 E_T
        (output(gain=1.1e-4), output(gain=2.1e-4), Kind.WITHIN, ""),  # less than 2x
        (output(), output(octaves=moved(0.2)), Kind.WITHIN, ""),  # 10 more
        (output(), output(octaves=moved(0.22)), Kind.WORSE,
         "elements above 2^1 roundings 0 to 11, allowed 10"),
        (output(octaves=[100, 100]), output(octaves=[76, 124]), Kind.WITHIN, ""),
        (output(octaves=[100, 100]), output(octaves=[74, 126]), Kind.WITHIN, ""),
        (output(octaves=[100, 100]), output(octaves=[48, 152]), Kind.DRIFT,
         "mean log2 z -4.00 to -3.74, allowed +0.25"),
        (output(octaves=[48, 152]), output(octaves=[100, 100]), Kind.BETTER,
         "out: mean log2 z -3.74 to -4.00"),
        (output(gain=-4e-4), output(gain=1e-5), Kind.BETTER, "out: gain 0.0004 to 1e-05"),
    ],
)  # fmt: skip
def test_a_rule_at_its_border(
    old: dict[str, Any], new: dict[str, Any], kind: Kind, words: str, tmp_path: Path
) -> None:
    found, reasons = one(tmp_path, checkpoint("a", old), checkpoint("a", new))
    assert (found, words in reasons) == (kind, True), reasons


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"golden_sha256": OTHER, "error": 1.0}, Kind.NOT_COMPARABLE, "another recording"),
        ({"contract": "bf16 fused", "error": 1.0}, Kind.NOT_COMPARABLE, "another contract"),
        ({"outputs": [output(name="y")]}, Kind.NOT_COMPARABLE, "another outputs: out and y"),
        ({"status": "fail", "golden_sha256": OTHER}, Kind.WORSE, "was pass, is fail"),
        ({"status": "blind"}, Kind.WORSE, "was pass, is blind"),
        ({"error": 1.0, "impl": ["rms_norm/avx512"]}, Kind.WORSE,
         "ran rms_norm/avx512 instead of rms_norm/avx2"),
    ],
)  # fmt: skip
def test_what_decides_before_the_figures(
    changes: dict[str, Any], kind: Kind, words: str, tmp_path: Path
) -> None:
    found, reasons = one(tmp_path, checkpoint(), checkpoint(**changes))
    assert (found, words in reasons) == (kind, True), reasons


def test_a_repaired_checkpoint_is_better_and_a_hidden_one_is_not(tmp_path: Path) -> None:
    failed = checkpoint(status="fail")
    assert one(tmp_path, failed, checkpoint())[0] == Kind.BETTER
    assert one(tmp_path, failed, checkpoint(status="unsupported"))[0] == Kind.NOT_COMPARABLE


def test_equal_bits_under_another_verdict_are_worse(tmp_path: Path) -> None:
    found = compared(tmp_path, [checkpoint()], [checkpoint(status="fail")])
    assert found.got_worse


def test_what_appears_and_vanishes_is_said(tmp_path: Path) -> None:
    found = compared(
        tmp_path, [checkpoint("a"), checkpoint("b")], [checkpoint("b"), checkpoint("c")]
    )
    assert [key.checkpoint for key in found.appeared] == ["c"]
    assert [key.checkpoint for key in found.vanished] == ["a"]
    assert not found.got_worse
    sides = str(tmp_path / "old.jsonl"), str(tmp_path / "new.jsonl")
    assert main(["history", "compare", *sides]) == 0
    assert main(["history", "compare", "--strict", *sides]) == 1


def test_a_small_loss_everywhere_is_seen_across_checkpoints(tmp_path: Path) -> None:
    """16 of 20 worse is more than chance; 13 of 20 is not, nor is a loss below a percent."""
    for grown, factor, worse in ((16, 1.2, True), (13, 1.2, False), (20, 1.005, False)):
        new = [
            checkpoint(f"c{i}", output(1e-3 * (factor if i < grown else 0.99)), output_sha256=OTHER)
            for i in range(20)
        ]
        found = compared(tmp_path, [checkpoint(f"c{i}") for i in range(20)], new)
        assert not found.of(Kind.WORSE, Kind.DRIFT)
        assert (found.trends[0].grown, found.got_worse) == (grown, worse)
    assert sign_test(16, 20) == pytest.approx(0.0059, abs=1e-4)
    assert sign_test(18, 20) == pytest.approx(0.0002, abs=1e-5)


def test_mann_whitney_counts_every_choice_of_ranks() -> None:
    low, high = [1.0, 2.0, 2.0, 5.0], [2.0, 4.0, 6.0]
    ranks = dict(zip([1.0, 2.0, 4.0, 5.0, 6.0], [1, 3, 5, 6, 7], strict=True))
    everything = [ranks[value] for value in low + high]
    observed = sum(ranks[value] for value in high)
    sums = [sum(choice) for choice in combinations(everything, len(high))]
    expected = sum(total >= observed for total in sums) / len(sums)
    assert mann_whitney(low, high) == pytest.approx(expected)
    many = [float(i) for i in range(40)]  # U is 288 above its mean, its deviation 103.9
    assert mann_whitney(many, [value + 8 for value in many]) == pytest.approx(0.002829, abs=1e-6)
    assert mann_whitney([1.0] * 40, [1.0] * 40) > 0.4
    assert mann_whitney([1.0] * 9, [math.nan] * 9) < 1e-4


def repeated(tmp_path: Path, name: str, errors: list[float]) -> str:
    lines = [
        (tmp_path / f"{name}{i}.jsonl", checkpoint(error=error, output_sha256=f"{i:064x}"))
        for i, error in enumerate(errors)
    ]
    return ",".join(str(write(path, line, started=str(path))) for path, line in lines)


@pytest.mark.parametrize(
    ("factor", "runs", "code", "words"),
    [
        (2.0, 9, 1, "medians of 9 and 9 runs, 0.00104 to 0.00208 (2x), allowed 1.5x"),
        (1.4, 9, 0, "1 changed within"),
        (2.0, 8, 4, "9 runs of each side are needed, there are 8 and 8"),
        (0.5, 9, 0, "BETTER"),
    ],
)
def test_what_differs_from_run_to_run_is_compared_by_medians(
    factor: float, runs: int, code: int, words: str,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    errors = [1e-3 + 1e-5 * i for i in range(runs)]
    old = repeated(tmp_path, "old", errors)
    new = repeated(tmp_path, "new", [error * factor for error in errors])
    assert main(["history", "compare", old, new]) == code
    assert words in capsys.readouterr().out


def test_one_fault_and_one_passing_loss_are_found_and_an_identical_run_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [checkpoint(f"c{i}", output_sha256=f"{i:064x}") for i in range(30)]
    bad = [dict(line) for line in good]
    bad[7] |= {"status": "fail", "output_sha256": OTHER, "outputs": [output(0.7)]}
    bad[21] |= {"output_sha256": OTHER, "outputs": [output(2e-3)]}
    old, new = write(tmp_path / "old.jsonl", *good), write(tmp_path / "new.jsonl", *bad)
    assert main(["history", "compare", str(old), str(new)]) == 1
    said = capsys.readouterr().out
    assert "28 unchanged, 2 worse" in said
    assert "was pass, is fail" in said and "E_T 0.001 to 0.002 (2x)" in said
    assert "E_T 0.001 to 0.7 (700x)" in said
    again = write(tmp_path / "again.jsonl", *good, started="2026-01-02T00:00:00Z")
    assert main(["history", "compare", str(old), str(again)]) == 0


def test_the_best_baseline_sees_what_small_steps_add_up_to(tmp_path: Path) -> None:
    best, last, now = (
        str(write(tmp_path / f"{name}.jsonl", checkpoint(error=error, output_sha256=digit * 64)))
        for name, error, digit in (("best", 1e-3, "1"), ("last", 1.4e-3, "2"), ("now", 1.9e-3, "3"))
    )
    assert main(["history", "compare", last, now]) == 0
    assert main(["history", "compare", last, now, "--best", best]) == 1


def test_a_terminal_sees_no_control_characters(tmp_path: Path) -> None:
    evil = "a\x1b[31m\x9b\u202e\nb"
    found = compared(tmp_path, [checkpoint(evil)], [checkpoint(evil, status="fail", impl=[evil])])
    words = in_words(found)
    assert all(printable(line) == line for line in words.splitlines())
    assert r"a�[31m�\u202e\nb" in words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"outputs": [output(error="big")]}, "outputs[0].statistics.E_T is 'big', needs a number"),
        ({"outputs": [{}]}, "lacks outputs[0].name"),
        ({"impl": "x"}, "impl is 'x', needs an array"),
        ({"status": None}, "status is None, needs a string"),
        ({"checkpoint": "norm#0"}, "llama/whole norm#0 on cpu is there twice in one run"),
    ],
)
def test_a_bad_line_is_named(
    line: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = write(tmp_path / "o.jsonl", checkpoint()), tmp_path / "n.jsonl"
    write(new, checkpoint(), checkpoint("b", **line))
    assert main(["history", "compare", str(old), str(new)]) == 3
    said = capsys.readouterr().err
    assert f"{new}:3" in said and words in said


def test_a_run_that_was_cut_short_keeps_what_is_complete(tmp_path: Path) -> None:
    path = write(tmp_path / "cut.jsonl", checkpoint("a"), checkpoint("b"))
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b'"b"')])
    (run,) = read_results(path)
    assert [key.checkpoint for key in run.checkpoints] == ["a"] and not run.complete
    assert read_results(write(path, checkpoint("a")))[0].complete


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([checkpoint()], ":1: a checkpoint line comes before the run line"),
        ([RUN | {"schema": 2}, checkpoint()], ":1: schema is 2, this reader knows 1; use the rep"),
        ([RUN, checkpoint("\x1b"), checkpoint("\x1b")], ":3: llama/whole \ufffd on cpu is there t"),
        ([RUN, checkpoint(), checkpoint(fixture="other")], ": llama/whole norm#0 on cpu is of two"),
        ([RUN], ": holds no checkpoint; write the file with harness --json FILE"),
        ([SUMMARY], ":1: a summary line comes before the run line"),
        ([{"type": "bench"}], ":1: type is 'bench'; write the file with harness --json FILE"),
    ],
)
def test_what_is_no_results_file_says_why_in_plain_text(
    lines: list[dict[str, Any]], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["history", "compare", str(path), str(path)]) == 3
    said = capsys.readouterr().err
    assert f"{path}{words}" in said and "\x1b" not in said


def test_an_interrupted_run_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    lines = (RUN, checkpoint(), SUMMARY | {"interrupted": "SIGINT"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert not read_results(path)[0].complete


def test_what_the_harness_calls_nondeterministic_is_never_judged_by_one_run(
    tmp_path: Path,
) -> None:
    loose = {"status": "nondeterministic"}
    kind, words = one(tmp_path, checkpoint(**loose), checkpoint(error=1.0, **loose))
    assert kind == Kind.NOT_COMPARABLE and "9 runs of each side" in words


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("D0", "D0", Kind.WORSE),
        ("D1", "D0", Kind.NOT_COMPARABLE),
        ("D0", "D1", Kind.NOT_COMPARABLE),
        ("not measured", "not measured", Kind.WORSE),
    ],
)
def test_bits_that_differ_from_run_to_run_are_never_judged_by_one_run(
    old: str, new: str, kind: Kind, tmp_path: Path
) -> None:
    failed = {"status": "fail"}  # which hides that runs differed
    before, same = checkpoint(determinism=old, **failed), checkpoint(determinism=new, **failed)
    assert one(tmp_path, before, checkpoint(error=1.0, determinism=new, **failed))[0] == kind
    assert compared(tmp_path, [before], [same]).findings[0].kind == Kind.UNCHANGED


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("", "not measured", True), ("", "D0", False), ("D0", "not measured", False)],
)
def test_where_determinism_was_not_measured_the_change_says_so(
    old: str, new: str, said: bool, tmp_path: Path
) -> None:
    now = [
        checkpoint("a", determinism=new, output_sha256=OTHER),
        checkpoint("b", determinism=new),
    ]
    before = [checkpoint(name, determinism=old) for name in ("a", "b")]
    notes = compared(tmp_path, before, now).notes
    assert any("of 1 checkpoints that changed neither side has" in n for n in notes) == said


def test_no_output_on_one_side_is_not_the_same_bits(tmp_path: Path) -> None:
    nothing = checkpoint(output_sha256="", outputs=[])
    assert one(tmp_path, nothing, checkpoint())[0] == Kind.NOT_COMPARABLE
    found = compared(tmp_path, [nothing], [nothing])
    assert [finding.kind for finding in found.findings] == [Kind.UNCHANGED]


# On another machine.


def on_machines(
    tmp_path: Path, old: str, new: str, before: dict[str, Any], now: dict[str, Any]
) -> Comparison:
    sides = (
        write(tmp_path / "old.jsonl", before, devices=[old]),
        write(tmp_path / "new.jsonl", now | {"output_sha256": OTHER}, devices=[new]),
    )
    return compare(*map(read_results, sides))


@pytest.mark.parametrize(
    ("device", "old", "new", "words"),
    [
        ("cpu", "cpu: AMD EPYC, avx2, 2 threads", "cpu: Intel Xeon, avx512, 8 threads",
         "another instruction set: cpu of the older side is of avx2, of the newer of avx512"),
        ("cuda:0", "cuda:0: NVIDIA H200, 9 MiB, compute capability 9.0",
         "cuda:0: NVIDIA A100, 9 MiB, compute capability 8.0",
         "another device: cuda:0 of the older side is of NVIDIA H200, compute capability 9.0, of"),
    ],
)  # fmt: skip
def test_larger_errors_on_another_machine_are_no_loss(
    device: str, old: str, new: str, words: str, tmp_path: Path
) -> None:
    before, now = checkpoint(device=device), checkpoint(device=device, error=0.1)
    found = on_machines(tmp_path, old, new, before, now)
    assert [finding.kind for finding in found.findings] == [Kind.NOT_COMPARABLE]
    assert words in found.findings[0].reasons[0]
    assert not found.got_worse and not found.trends
    said = in_words(found)
    assert f"{words}" in said and "figures of 1 checkpoint whose" in said
    assert "WORSE" not in said and said.rstrip().endswith("nothing could be compared")


def test_a_verdict_counts_on_every_machine(tmp_path: Path) -> None:
    before, now = checkpoint(device="cpu"), checkpoint(device="cpu", status="fail")
    found = on_machines(tmp_path, "cpu: A, avx2", "cpu: B, avx512", before, now)
    assert found.got_worse


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cpu: AMD EPYC, avx2, 2 threads", "cpu: Intel Xeon, avx2, 8 threads"),
        ("cpu: a CPU", "cpu: a CPU, avx2"),  # one side does not say
        ("emu:64: the GPU kernels", "emu:64: the GPU kernels, other words"),
    ],
)
def test_what_sums_alike_is_compared(old: str, new: str, tmp_path: Path) -> None:
    device = old.split(": ")[0]
    before, now = checkpoint(device=device), checkpoint(device=device, error=0.1)
    assert on_machines(tmp_path, old, new, before, now).got_worse
