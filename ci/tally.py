#!/usr/bin/env python3
"""Sums up what ci/test ran and prints the last lines of it: where the time went, failures, skips,
one line of counts.

usage: ci/tally.py SUITES.tsv [--left-to COMMAND NAME...]

A line of the file is one suite: name, exit code (empty: not run), path of its JUnit file or "-",
reason (of not being run), seconds that passed, those of CPU time as user and system. A suite with a
JUnit file counts its test cases, one without counts as 1. --left-to names the suites that only
another command runs.
The exit code is 1 when anything failed, or when nothing passed.
"""

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

MAX_SHOWN = 20
SLOWEST = 10


@dataclass
class Tally:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # one reason a test
    suites: list[tuple[float, float, str]] = field(default_factory=list)  # seconds, CPU seconds
    tests: list[tuple[float, str]] = field(default_factory=list)  # seconds


def skip_reason(case: ET.Element, skip: ET.Element) -> str:
    """The reason of a skipped test: its own last line "skipped: ...", or the runner's message."""
    output = case.findtext("system-out") or ""
    said = [line for line in output.splitlines() if line.startswith("skipped: ")]
    return said[-1].removeprefix("skipped: ") if said else skip.get("message") or "no reason given"


def add_junit(tally: Tally, suite: str, path: Path) -> None:
    """Counts the test cases of a JUnit file; raises OSError or ET.ParseError when it has none."""
    for case in ET.parse(path).getroot().iter("testcase"):
        parts = dict.fromkeys([case.get("classname", ""), case.get("name", "")])  # ctest: equal
        name = f"{suite}: {' '.join(part for part in parts if part)}"
        tally.tests.append((float(case.get("time") or 0), name))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed.append(name)
        elif skip is not None:
            tally.skipped.append(f"{suite}: {skip_reason(case, skip)}")
        else:
            tally.passed += 1


def add_suite(tally: Tally, line: str) -> None:
    name, code, junit, reason, *times = line.split("\t")
    if not code:
        tally.skipped.append(f"{name}: {reason}")
        return
    seconds, user, system = map(float, times)
    tally.suites.append((seconds, user + system, name))
    failed_before = len(tally.failed)
    if junit == "-":
        tally.passed += code == "0"
    else:
        try:
            add_junit(tally, name, Path(junit))
        except (OSError, ET.ParseError) as error:
            tally.failed.append(f"{name}: no usable report {junit} ({error})")
    if code != "0" and len(tally.failed) == failed_before:
        tally.failed.append(f"{name}: exit code {code}")


def print_list(title: str, lines: list[str]) -> None:
    """Prints equal lines once with their count, and not more than MAX_SHOWN of them."""
    counts = Counter(lines)
    for line, count in list(counts.items())[:MAX_SHOWN]:
        print(f"{title}: {line}" + (f" (x{count})" if count > 1 else ""))
    if len(counts) > MAX_SHOWN:
        print(f"{title}: {len(counts) - MAX_SHOWN} more kinds, see the logs")


def print_slowest(tally: Tally) -> None:
    """What to look at when it takes too long. Suites overlap: CPU time says what each costs."""
    total = sum(cpu for _, cpu, _ in tally.suites)
    print(f"the slowest suites, of {total:.0f} s of CPU time:")
    for seconds, cpu, name in sorted(tally.suites, reverse=True)[:SLOWEST]:
        print(f"{seconds:8.1f} s {cpu:8.1f} s CPU  {name}")
    tests = [test for test in sorted(tally.tests, reverse=True)[:SLOWEST] if test[0] > 0]
    if tests:
        print(f"the slowest tests, of {len(tally.tests)}:")
    for seconds, name in tests:
        print(f"{seconds:8.1f} s  {name}")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 and (len(arguments) < 4 or arguments[1] != "--left-to"):
        print("usage: ci/tally.py SUITES.tsv [--left-to COMMAND NAME...]", file=sys.stderr)
        return 2
    tally = Tally()
    for line in Path(arguments[0]).read_text().splitlines():
        add_suite(tally, line)
    print()
    print_slowest(tally)
    print_list("skipped", tally.skipped)
    print_list("failed", tally.failed)
    if arguments[2:]:
        print(f"left to {arguments[2]}: {', '.join(arguments[3:])}")
    print(f"{tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped")
    return 1 if tally.failed or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
