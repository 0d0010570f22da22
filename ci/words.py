#!/usr/bin/env python3
"""Checks the words of Markdown pages and of comments, docstrings and string literals of C++ and
Python: they are those that a reader knows.

usage: ci/words.py [ROOT]

Prints a line for each violation, "path:line: what is wrong"; the exit code is 1 when there is one.
Identifiers, literals without a space, listings and names in `code` are not checked.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

# What a text does not say, and what it says instead.
WORDS = {
    r"beside": "next to, with, also",
    r"anew": "again",
    r"(?:some|any|no)body": "the passive, or the program by name",
    r"told": "given, said, stated",
    r"(?:go|goes|went|going) on": "continue",
    r"(?:stand|stands|stood)(?!-in)": "is, is listed",
    r"(?:lie|lies|lay)": "is",
    r"in turn": "alternating, one after the other",
    r"shall": "must, is to",
    r"strangers?": "other projects",
}
WORD = re.compile(rf"(?<![./])\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)  # no part of a path

# The words of past releases; this list and its test.
EXEMPT = {"CHANGELOG.md", "ci/words.py", "tests/python/test_words.py"}

SKIPPED_FOLDERS = {"build", "__pycache__"}
SUFFIXES = {".md", ".py", ".cpp", ".h", ".cu", ".cuh"}

FENCE = re.compile(r"^```.*?^```|<!--.*?-->", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*(?:\n[^`\n]+)?`")
CPP_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)
FIELD = re.compile(r"\{[^{}]*\}")  # of an f-string

Text = tuple[int, str]  # the line where it begins


def blank(match: re.Match[str]) -> str:
    """Nothing, with the line feeds of what was there."""
    return "\n" * match[0].count("\n")


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def is_name(literal: str) -> bool:
    """A key, a file, an identifier: no text."""
    return literal[-1] in "\"'" and not re.search(r"\s", literal)


def cpp_texts(source: str) -> Iterator[Text]:
    for match in CPP_TEXT.finditer(source):
        if not is_name(match[0]):
            yield line_of(source, match.start()), match[0]


def python_texts(source: str) -> Iterator[Text]:
    parts = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in parts and not is_name(token.string):
            is_format = re.match(r"\w*[fF]\w*[\"']", token.string)
            yield token.start[0], FIELD.sub("", token.string) if is_format else token.string


def texts(path: str, source: str) -> Iterator[Text]:
    if path.endswith(".md"):
        yield 1, FENCE.sub(blank, source)
    else:
        yield from python_texts(source) if path.endswith(".py") else cpp_texts(source)


def check(path: str, source: str) -> Iterator[Text]:
    for begin, text in texts(path, source):
        prose = CODE.sub(blank, text)
        for match in WORD.finditer(prose):
            instead = next(it for word, it in WORDS.items() if re.match(word, match[0], re.I))
            line = begin - 1 + line_of(prose, match.start())
            yield line, f'"{match[0]}"; say: {instead}'


def files_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name[0] == "." or path.is_symlink():
            continue
        if path.is_dir() and path.name not in SKIPPED_FOLDERS:
            yield from files_below(path)
        elif path.suffix in SUFFIXES:
            yield path


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    files = {str(path.relative_to(root)): path for path in files_below(root)}
    wrong = 0
    for name in sorted(files.keys() - EXEMPT):
        for line, what in check(name, files[name].read_text(encoding="utf-8")):
            print(f"{name}:{line}: {what}")
            wrong += 1
    print(f"words: {wrong} problems in {len(files)} files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
