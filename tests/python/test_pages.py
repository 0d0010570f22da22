"""ci/pages.py on small trees: each rule is seen to object, and each exception to be granted."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "pages.py"


def check(root: Path, page: str, text: str) -> tuple[int, str]:
    file = root / page
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    (root / "other.md").write_text("# Other\n\n## What it is, and `why`\n")
    done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout


BAD = {
    "no such page": ("a/b.md", "\n[x](c.md)", "a/b.md:2: link to c.md, which does not exist"),
    "a page of another folder": ("a/b.md", "[x](other.md)", "a/b.md:1: link to other.md"),
    "a link over two lines": ("a.md", "[of\ntwo](b.md)", "a.md:2: link to b.md"),
    "no such heading": ("a.md", "[x](other.md#nothing)", "other.md#nothing, which is no heading"),
    "no such heading here": ("a.md", "# A\n[x](#b)", "a.md:2: link to #b, which is no heading"),
    "a heading in code only": ("a.md", "```\n# b\n```\n[x](#b)", "a.md:4: link to #b"),
    "a link of the CHANGELOG": ("CHANGELOG.md", "[x](c.md)", "CHANGELOG.md:1: link to c.md"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_violation_is_named(name: str, tmp_path: Path) -> None:
    page, text, expected = BAD[name]
    code, output = check(tmp_path, page, text)
    assert code == 1
    assert expected in output
    assert output.endswith("pages: 1 problems in 2 pages\n")


GOOD = {
    "a page above": ("a/b.md", "[x](../other.md)"),
    "a heading": ("a/b.md", "[x](../other.md#what-it-is-and-why)"),
    "a heading of its page": ("a.md", "# A [b](other.md)\n[x](#a-b)"),
    "a folder": ("a/b.md", "[x](../a)"),
    "an address": ("a.md", "[x](https://example.org/a#b) [y](mailto:a@example.org)"),
    "a link in a listing": ("a.md", "```\n[x](c.md)\n```\n"),
    "the command of an output": ("a.md", "<!-- output of: cat [x](c.md) -->\n"),
    "a built page": ("build/a.md", "[x](c.md)"),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_allowed_passes(name: str, tmp_path: Path) -> None:
    code, output = check(tmp_path, *GOOD[name])
    assert code == 0, output
    assert output.startswith("pages: 0 problems in ")
