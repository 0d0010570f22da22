#!/usr/bin/env python3
"""Checks the links of the Markdown pages: each has a file and a heading at its end.

usage: ci/pages.py [ROOT]

Prints a line for each violation, "path:line: what is wrong"; the exit code is 1 when there is one.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

SKIPPED_FOLDERS = {"build", "__pycache__", "data"}

FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z]+:")


def blank(match: re.Match[str]) -> str:
    """Nothing, with the line feeds of what was there."""
    return "\n" * match[0].count("\n")


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def pages_below(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.name not in SKIPPED_FOLDERS and path.name[0] != ".":
            yield from pages_below(path)
        elif path.suffix == ".md":
            yield path


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub names them in links."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = (LINK.sub("]", match[1]) for match in HEADING.finditer(text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def wrong_links(page: Path, text: str) -> Iterator[tuple[int, str]]:
    for match in LINK.finditer(text):
        if ELSEWHERE.match(match[1]):
            continue
        path, _, anchor = match[1].partition("#")
        target = page.parent / path if path else page
        line = line_of(text, match.start())
        if not target.exists():
            yield line, f"link to {match[1]}, which does not exist"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield line, f"link to {match[1]}, which is no heading of that page"


def check_page(page: Path) -> Iterator[tuple[int, str]]:
    yield from wrong_links(page, COMMENT.sub(blank, FENCE.sub(blank, page.read_text("utf-8"))))


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    pages, wrong = list(pages_below(root)), 0
    for page in pages:
        for line, what in check_page(page):
            print(f"{page.relative_to(root)}:{line}: {what}")
            wrong += 1
    print(f"pages: {wrong} problems in {len(pages)} pages")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
