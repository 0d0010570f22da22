"""ci/pages.py and ci/llms.py on small trees: each rule objects, each exception is granted."""

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


def llms(root: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, SCRIPT.with_name("llms.py"), *words, root]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_llms_txt_has_every_page_and_an_old_one_is_told(tmp_path: Path) -> None:
    pages = {
        "README.md": "# It\n\nIs `a` judge\nof [kernels](k.md). More.\n\nAnd fast.\n\n## Use\n",
        "k.md": "# Kernels\n\n```\n# no.\n```\n\nWhat they take, in\n[all](README.md):\n\n- x.\n",
        "ci/README.md": "# ci\n\n- A list. Of things.\n",
        "build/x.md": "# no page\n",
        ".agents/skills/a/SKILL.md": "---\nname: a\n---\n# A skill\n\nUse it. Now.\n",
    }
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert llms(tmp_path, "--check") == (1, "llms.txt: is not what the pages say: run ci/llms.py\n")
    assert llms(tmp_path) == llms(tmp_path, "--check") == (0, "")
    assert (tmp_path / "llms.txt").read_text() == (
        "# It\n\n> Is `a` judge of kernels. More. And fast.\n\n"
        "## Pages\n\n"
        "- [It](README.md): Is `a` judge of kernels.\n"
        "- [Kernels](k.md): What they take, in all:\n"
        "- [A skill](.agents/skills/a/SKILL.md): Use it.\n\n"
        "## Optional\n\n"
        "- [ci](ci/README.md)\n"
    )
    (tmp_path / "k.md").write_text("# Cores\n\nWhat.\n")
    assert llms(tmp_path, "--check")[0] == 1
    (tmp_path / "k.md").write_text("No title.\n")
    assert llms(tmp_path)[1].startswith(f"llms: {tmp_path}/k.md has no title")
