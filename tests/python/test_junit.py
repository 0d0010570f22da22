"""JUnit files of the harness are what CI viewers read.

The rules are those of Jenkins' junit-10.xsd, which viewers that validate apply as written, and what
the others (GitLab, Azure, GitHub's reporters) count on: sums that add up, times that are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from harness_runs import verify

ALLOWED = {  # element: its attributes, its children
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
        {"properties", "testcase"},
    ),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"name", "classname", "time"}, {"skipped", "error", "failure", "system-out"}),
    "skipped": ({"message"}, set()),
    "error": ({"type", "message"}, set()),
    "failure": ({"type", "message"}, set()),
    "system-out": (set(), set()),
}
REQUIRED = {
    "testsuite": {"name", "tests", "failures", "errors"},
    "testcase": {"name", "classname", "time"},
    "property": {"name", "value"},
}
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


def check_names(root: Element) -> None:
    for element in root.iter():
        attributes, children = ALLOWED[element.tag]
        assert set(element.attrib) <= attributes, element.attrib
        assert set(element.attrib) >= REQUIRED.get(element.tag, set()), element.tag
        assert {child.tag for child in element} <= children, element.tag
        assert not CONTROL.search("".join([element.text or "", *element.attrib.values()]))
        assert TIME.fullmatch(element.get("time", "0"))
        if element.tag not in ("failure", "error", "system-out"):
            assert not (element.text or "").strip()


def holding(cases: Iterable[Element], tag: str) -> int:
    return sum(case.find(tag) is not None for case in cases)


def check_sums(root: Element) -> None:
    for suite in [root, *root.iter("testsuite")]:
        cases = list(suite.iter("testcase"))
        assert int(suite.get("tests", "")) == len(cases)
        assert int(suite.get("failures", "")) == holding(cases, "failure")
        assert int(suite.get("errors", "")) == holding(cases, "error")
        if suite is not root:
            assert int(suite.get("skipped", "0")) == holding(cases, "skipped")
    for case in root.iter("testcase"):
        verdicts = [child for child in case if child.tag in ("failure", "error", "skipped")]
        assert len(verdicts) <= 1
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(set(names)) == len(names)


def junit(tmp_path: Path, *options: str) -> tuple[int, Element]:
    out = tmp_path / "junit.xml"
    run = verify(tmp_path, "--junit", str(out), "--device", "cpu", "--repeat", "1", *options)
    root = ElementTree.parse(out).getroot()
    check_names(root)
    check_sums(root)
    return run.code, root


def test_of_a_run_that_passes(tmp_path: Path) -> None:
    code, root = junit(tmp_path, "--fixture", "fixtures/llama-a1", "--mode", "both")
    assert code == 0
    cases = list(root.iter("testcase"))
    assert len(cases) > 1000 and holding(cases, "skipped") and holding(cases, "system-out")


def test_of_a_run_that_fails(plugins: Path, tmp_path: Path) -> None:
    code, root = junit(
        tmp_path, "--plugin", str(plugins / "rms_norm_wrong.so"), "--fixture", "fixtures/llama-a1"
    )
    assert code == 1
    texts = [failure.text or "" for failure in root.iter("failure")]
    assert len(texts) > 100 and all("again: harness --fixture" in text for text in texts)


@pytest.mark.parametrize("options", [("--block", "add", "--strict"), ("--block", "causal_mask")])
def test_of_a_run_with_more_to_say_than_its_cases(options: tuple[str, ...], tmp_path: Path) -> None:
    code, root = junit(tmp_path, "--fixture", "fixtures/llama-a1/decode-f32", *options)
    said = int(root.get("failures", "")) + int(root.get("errors", ""))
    assert (code != 0) == (said > 0)
