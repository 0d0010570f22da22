"""Text for a terminal: what recordings and files name is data there, not commands."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with every character escaped that a terminal would act on."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """The same of every line, for text that has several."""
    return "\n".join(map(printable, text.split("\n")))
