"""A pytest plugin: the fixture `plumbline`, a section of verdicts at the end, --plumbline-html.

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

from .verdict import Verdict, by_its_verdict, heard_by

OPTION = "--plumbline-html"
_PROPERTY, _PAGE = "plumbline", "plumbline_html"


class Plumbline:
    """What a test is given: check() and verify(), without an import."""

    def check(self, function: Any, like: Any, inputs: Any, **options: Any) -> Verdict:
        """plumbline.check(): AssertionError where the function is wrong."""
        __tracebackhide__ = by_its_verdict
        from .checking import check

        return check(function, like, inputs, **options)

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
    entry = {"checkpoint": verdict.checkpoint, "status": verdict.status, "text": str(verdict)}
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

    def __init__(self, page: Path | None) -> None:
        self._page = page
        self._verdicts: list[tuple[str, dict[str, Any]]] = []
        self._pages: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == _PROPERTY:
                entry = json.loads(str(value)) | {"expected": report.passed}
                self._verdicts.append((report.nodeid, entry))
            elif name == _PAGE:
                self._pages.append((report.nodeid, str(value)))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._verdicts:
            terminalreporter.section("plumbline")
            for line in _summary(self._verdicts):
                terminalreporter.write_line(line)
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
    for test, entry in verdicts:
        if entry["status"] != "pass" and not (entry["status"] == "fail" and entry["expected"]):
            lines += [f"{test}", *(f"  {line}" for line in entry["text"].splitlines())]
    return lines


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("plumbline")
    group.addoption(OPTION, metavar="FILE", help="write all verdicts to an HTML page")


def pytest_configure(config: pytest.Config) -> None:
    named = config.getoption(OPTION)
    page = None if named is None or hasattr(config, "workerinput") else Path(named).absolute()
    if page is not None and not page.parent.is_dir():
        raise pytest.UsageError(f"{OPTION} {named}: there is no folder {page.parent}")
    config.pluginmanager.register(_Report(page), "plumbline-report")


@pytest.fixture
def plumbline() -> Plumbline:
    """Judges kernels: `plumbline.check(my_kernel, like=module, inputs=(x,))`."""
    return Plumbline()
