"""ci/tally.py: what ci/test reports must count every failure and every skip."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "tally.py"

JUNIT = """<testsuites><testsuite>
<testcase name="adds" classname="ops" time="0.25"/>
<testcase name="multiplies" classname="ops"><failure message="1 != 2"/></testcase>
<testcase name="ops.divides" classname="ops.divides"><error message="crashed"/></testcase>
<testcase name="on hip"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>Filters: x
skipped: hip: no such device
</system-out></testcase>
<testcase name="on cuda"><skipped message="no driver"/></testcase>
</testsuite></testsuites>
"""


def run(
    folder: Path, *suites: tuple[str, ...], options: tuple[str, ...] = ()
) -> tuple[int, list[str]]:
    listing = folder / "suites.tsv"
    listing.write_text("".join("\t".join(suite) + "\n" for suite in suites))
    command = [sys.executable, SCRIPT, listing, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout.split("\n")[1:-1]


def tally(folder: Path, *suites: tuple[str, str, str, str]) -> tuple[int, list[str]]:
    """Of suites that took no time; the lines after those that say where it went."""
    code, lines = run(folder, *((*suite, "0", "0", "0") for suite in suites))
    return code, [line for line in lines if "slowest" not in line and not line.startswith("  ")]


def test_suites_without_a_report_count_as_one(tmp_path: Path) -> None:
    code, lines = tally(tmp_path, ("ruff", "0", "-", ""), ("mypy", "0", "-", ""))
    assert (code, lines) == (0, ["2 passed, 0 failed, 0 skipped"])


def test_what_another_command_runs_is_named_before_the_counts(tmp_path: Path) -> None:
    options = ("--left-to", "ci/nightly", "test_sanitized", "build_hip")
    code, lines = run(tmp_path, ("ruff", "0", "-", "", "0", "0", "0"), options=options)
    left = "left to ci/nightly: test_sanitized, build_hip"
    assert (code, lines[-2:]) == (0, [left, "1 passed, 0 failed, 0 skipped"])


def test_a_failed_suite_fails_the_run(tmp_path: Path) -> None:
    code, lines = tally(tmp_path, ("ruff", "0", "-", ""), ("mypy", "2", "-", ""))
    assert (code, lines) == (1, ["failed: mypy: exit code 2", "1 passed, 1 failed, 0 skipped"])


def test_cases_of_a_report_are_counted_and_named(tmp_path: Path) -> None:
    report = tmp_path / "ctest.xml"
    report.write_text(JUNIT)
    code, lines = tally(tmp_path, ("ctest", "8", str(report), ""))
    assert code == 1
    assert lines == [
        "skipped: ctest: hip: no such device",
        "skipped: ctest: no driver",
        "failed: ctest: ops multiplies",
        "failed: ctest: ops.divides",
        "1 passed, 2 failed, 2 skipped",
    ]


def test_equal_reasons_are_shown_once(tmp_path: Path) -> None:
    report = tmp_path / "verify.xml"
    case = '<testcase name="a"><skipped message="blind: constant"/></testcase>'
    report.write_text(f'<testsuite>{case * 3}<testcase name="b"/></testsuite>')
    code, lines = tally(tmp_path, ("verify", "0", str(report), ""))
    assert (code, lines) == (
        0,
        ["skipped: verify: blind: constant (x3)", "1 passed, 0 failed, 3 skipped"],
    )


def test_a_suite_that_was_not_run_is_a_skip(tmp_path: Path) -> None:
    code, lines = tally(tmp_path, ("ruff", "0", "-", ""), ("cuda", "", "-", "no driver"))
    assert (code, lines) == (0, ["skipped: cuda: no driver", "1 passed, 0 failed, 1 skipped"])


@pytest.mark.parametrize("content", [None, "", "<testsuite><testcase"])
@pytest.mark.parametrize("exit_code", ["0", "1"])
def test_a_missing_or_broken_report_is_one_failure(
    tmp_path: Path, content: str | None, exit_code: str
) -> None:
    report = tmp_path / "pytest.xml"
    if content is not None:
        report.write_text(content)
    code, lines = tally(tmp_path, ("pytest", exit_code, str(report), ""))
    assert code == 1
    assert "no usable report" in lines[0]
    assert lines[-1] == "0 passed, 1 failed, 0 skipped"


def test_an_exit_code_without_a_failed_case_is_a_failure(tmp_path: Path) -> None:
    report = tmp_path / "ctest.xml"
    report.write_text('<testsuite><testcase name="adds"/></testsuite>')
    code, lines = tally(tmp_path, ("ctest", "1", str(report), ""))
    assert (code, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped")


def test_nothing_passed_is_a_failure(tmp_path: Path) -> None:
    code, lines = tally(tmp_path, ("cuda", "", "-", "no driver"))
    assert (code, lines[-1]) == (1, "0 passed, 0 failed, 1 skipped")


def test_the_slowest_suites_and_tests_are_shown_with_their_times(tmp_path: Path) -> None:
    report = tmp_path / "ctest.xml"
    report.write_text(JUNIT.replace('"multiplies"', '"multiplies" time="2.5"'))
    suites = [(f"suite-{i:02}", "0", "-", "", str(i), "0.25", "0.25") for i in range(12)]
    _, lines = run(tmp_path, ("ctest", "1", str(report), "", "3.5", "6.0", "1.0"), *suites)
    assert lines[:15] == [
        "the slowest suites, of 13 s of CPU time:",
        *(f"{i:8.1f} s      0.5 s CPU  suite-{i:02}" for i in range(11, 3, -1)),
        "     3.5 s      7.0 s CPU  ctest",
        "     3.0 s      0.5 s CPU  suite-03",
        "the slowest tests, of 5:",
        "     2.5 s  ctest: ops multiplies",
        "     0.2 s  ctest: ops adds",
        "skipped: ctest: hip: no such device",
    ]
    assert lines[-1] == "13 passed, 2 failed, 2 skipped"
