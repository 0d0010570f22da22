"""A pytest plugin: the fixture `plumbline`, a section of verdicts at the end, --plumbline-html,
--plumbline-json, annotations for GitHub Actions.

Verdicts travel as user properties of the reports, so that workers of pytest-xdist hand them over.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .annotations import annotation, in_actions
from .verdict import Verdict, by_its_verdict, heard_by

OPTION, JSON, ANNOTATE = "--plumbline-html", "--plumbline-json", "--plumbline-annotate"
SCHEMA_VERSION = 1
_PROPERTY, _PAGE = "plumbline", "plumbline_html"


class Plumbline:
    """What a test is given: check(), invariant() and verify(), without an import."""

    def check(self, function: Any, like: Any, inputs: Any, **options: Any) -> Verdict:
        """plumbline.check(): AssertionError where the function is wrong."""
        __tracebackhide__ = by_its_verdict
        from .checking import check

        return check(function, like, inputs, **options)

    def invariant(self, function: Any, inputs: Any, **options: Any) -> Verdict:
        """plumbline.invariant(): AssertionError where a row depends on others."""
        __tracebackhide__ = by_its_verdict
        from .invariance import invariant

        return invariant(function, inputs, **options)

    def verify(self, function: Any, recording: Path | str, **options: Any) -> list[Verdict]:
        """plumbline.verify(), and AssertionError where a verdict is no pass.

        What is blind or unsupported is left out, unless that is all there is.
        """
        from .verification import verify

        verdicts = verify(function, recording, **options)
        wrong = [v for v in verdicts if v.status not in ("pass", "blind", "unsupported")]
        if wrong or not any(v.passed for v in verdicts):
            __tracebackhide__ = True
            raise AssertionError("\n".join(map(str, wrong or verdicts)))
        return verdicts


def _keep(item: pytest.Item, pages: bool, verdict: Verdict) -> None:
    entry = {"status": verdict.status, "text": str(verdict), "verdict": verdict.to_json()}
    item.user_properties.append((_PROPERTY, json.dumps(entry)))
    if pages:
        item.user_properties.append((_PAGE, verdict._repr_html_()))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keeps the verdicts of all that a test and its fixtures call."""
    pages = item.config.getoption(OPTION) is not None
    with heard_by(partial(_keep, item, pages)):
        yield


class _Report:
    """Collects what the tests' reports say of verdicts."""

    def __init__(self, page: Path | None, file: Path | None, annotates: bool) -> None:
        self._page, self._file, self._annotates = page, file, annotates
        self._verdicts: list[tuple[str, dict[str, Any]]] = []
        self._pages: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == _PROPERTY:
                place, line, _ = report.location
                entry = json.loads(str(value)) | {"expected": report.passed}
                entry |= {"place": place, "line": (line or 0) + 1}
                self._verdicts.append((report.nodeid, entry))
            elif name == _PAGE:
                self._pages.append((report.nodeid, str(value)))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._verdicts:
            terminalreporter.section("plumbline")
            for line in _summary(self._verdicts):
                terminalreporter.write_line(line)
        if self._annotates:
            for _, entry in filter(_is_unexpected, self._verdicts):
                place = Path(entry["place"])
                if line := annotation(entry["status"], entry["text"], place, entry["line"]):
                    terminalreporter.write_line(line)
        if self._file is not None:
            self._file.write_text(json.dumps(_listed(self._verdicts)) + "\n", encoding="utf-8")
            terminalreporter.write_line(f"{len(self._verdicts)} verdicts written to {self._file}")
        if self._page is not None:
            from .verdict_html import page_of

            self._page.write_text(page_of(self._pages), encoding="utf-8")
            terminalreporter.write_line(f"{len(self._pages)} verdicts written to {self._page}")


def _summary(verdicts: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    """Counts by status, then what did not pass, each in full, but for failures that a test that
    passed has asked for."""
    verdicts = list(verdicts)
    counts = Counter(entry["status"] for _, entry in verdicts)
    words = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    lines = [f"{len(verdicts)} verdicts: {words}"]
    for test, entry in filter(_is_unexpected, verdicts):
        lines += [f"{test}", *(f"  {line}" for line in entry["text"].splitlines())]
    return lines


def _is_unexpected(item: tuple[str, dict[str, Any]]) -> bool:
    """No pass, and no failure that a test which passed has asked for."""
    entry = item[1]
    return entry["status"] != "pass" and not (entry["status"] == "fail" and entry["expected"])


def _listed(verdicts: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """As data/verdicts.schema.json describes it."""
    items = [
        {"test": test, "test_passed": entry["expected"], "verdict": entry["verdict"]}
        for test, entry in verdicts
    ]
    return {"schema_version": SCHEMA_VERSION, "verdicts": items}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("plumbline")
    group.addoption(OPTION, metavar="FILE", help="write all verdicts to an HTML page")
    group.addoption(JSON, metavar="FILE", help="write all verdicts to a file of JSON")
    group.addoption(
        ANNOTATE,
        action="store_true",
        default=in_actions(),
        help="lines for GitHub Actions; by default where GITHUB_ACTIONS is true",
    )


def _place(config: pytest.Config, option: str) -> Path | None:
    """Where to write; a worker of pytest-xdist writes nothing."""
    named = config.getoption(option)
    if named is None or hasattr(config, "workerinput"):
        return None
    place = Path(named).absolute()
    if not place.parent.is_dir():
        raise pytest.UsageError(f"{option} {named}: there is no folder {place.parent}")
    return place


def pytest_configure(config: pytest.Config) -> None:
    report = _Report(_place(config, OPTION), _place(config, JSON), bool(config.getoption(ANNOTATE)))
    config.pluginmanager.register(report, "plumbline-report")


@pytest.fixture
def plumbline() -> Plumbline:
    """Judges kernels: `plumbline.check(my_kernel, like=module, inputs=(x,))`."""
    return Plumbline()
