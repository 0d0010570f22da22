#!/usr/bin/env python3
"""Writes llms.txt, the list of all pages for programs that read documentation (llmstxt.org).

usage: ci/llms.py [--check] [ROOT]

A page's line is its title, and the sentence that it begins with. --check only compares, and exits
with 1 where they differ.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pages import COMMENT, FENCE, pages_below

NAME = "llms.txt"
SKILLS = ".agents/skills"
OPTIONAL = ("CONTRIBUTING.md", "blocks/", "ci/", "harness/README.md", "kernels/README.md", "tests/")
"""Pages for those who change the project."""
TITLE = re.compile(r"^# (.*)$", re.MULTILINE)
SENTENCE = re.compile(r"[\w`].*?(?:[.?!](?= )|[.?!:]$)")
LINKED = re.compile(r"\[([^\]]*)\]\([^)\s]+\)")


def opening(page: Path) -> tuple[str, list[str]]:
    """The title of a page, and what is below it in blocks without line feeds."""
    text = COMMENT.sub("", FENCE.sub("", page.read_text("utf-8")))
    title = TITLE.search(text)
    if title is None:
        raise SystemExit(f"llms: {page} has no title")
    blocks = LINKED.sub(r"\1", text[title.end() :]).split("\n\n")
    return title[1], [words for it in blocks if (words := " ".join(it.split()))]


def line_of(root: Path, page: Path) -> str:
    title, (first, *_) = opening(page)
    sentence = SENTENCE.match(first)
    about = f": {sentence[0]}" if sentence else ""
    return f"- [{title}]({page.relative_to(root).as_posix()}){about}"


def pages_of(root: Path) -> Iterator[Path]:
    yield from pages_below(root)
    yield from sorted((root / SKILLS).rglob("*.md"))


def text_of(root: Path) -> str:
    """All of llms.txt."""
    title, about = opening(root / "README.md")
    sections: dict[str, list[str]] = {"Pages": [], "Optional": []}
    for page in pages_of(root):
        name = page.relative_to(root).as_posix()
        section = "Optional" if name.startswith(OPTIONAL) else "Pages"
        sections[section].append(line_of(root, page))
    parts = [f"# {title}", "> " + " ".join(about[:2])]
    parts += [f"## {name}\n\n" + "\n".join(lines) for name, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    check = "--check" in arguments[:1]
    roots = arguments[check:]
    root = Path(roots[0]) if roots else Path(__file__).resolve().parent.parent
    text, file = text_of(root), root / NAME
    if not check:
        file.write_text(text, "utf-8")
    elif not file.is_file() or file.read_text("utf-8") != text:
        print(f"{NAME}: is not what the pages say: run ci/llms.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
