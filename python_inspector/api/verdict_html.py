"""Verdicts as HTML: for notebooks and for the page of pytest --plumbline-html."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Protocol

_COLOURS = {"pass": "#1a7f37", "fail": "#cf222e", "error": "#cf222e", "blind": "#9a6700"}
_STYLE = (
    "<style>.plumbline{font:14px system-ui,sans-serif}"
    ".plumbline td,.plumbline th{text-align:left;padding:2px 10px}"
    ".plumbline pre{white-space:pre-wrap}</style>"
)
_MOST_GATES = 8


class Shown(Protocol):
    """What is shown of a verdict; str() of it is its text."""

    @property
    def checkpoint(self) -> str: ...
    @property
    def block(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def passed(self) -> bool: ...
    @property
    def figures(self) -> Mapping[str, Any]: ...
    @property
    def cases(self) -> Sequence[Shown]: ...


def html_of(verdict: Shown) -> str:
    """A heading, the words, and the gates nearest to their limits; of several cases each."""
    parts = [_STYLE, '<div class="plumbline">', _heading(verdict)]
    if verdict.cases:
        parts += [_case(case) for case in verdict.cases]
    else:
        parts.append(_body(verdict))
    return "".join([*parts, "</div>"])


def page_of(verdicts: Sequence[tuple[str, str]]) -> str:
    """A whole page of (title, html_of) pairs."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Plumbline verdicts</title>",
        "<body style='max-width:70em;margin:2em auto'>",
        f"<h1>{len(verdicts)} verdicts</h1>",
    ]
    parts += [f"<h2><code>{escape(title)}</code></h2>{html}" for title, html in verdicts]
    return "".join([*parts, "</body></html>\n"])


def _heading(verdict: Shown) -> str:
    colour = _COLOURS.get(verdict.status, "#57606a")
    return (
        f'<p><b style="color:{colour}">{escape(verdict.status)}</b> '
        f"<code>{escape(verdict.checkpoint)}</code> ({escape(verdict.block)})</p>"
    )


def _case(verdict: Shown) -> str:
    opened = "" if verdict.passed else " open"
    return f"<details{opened}><summary>{_heading(verdict)}</summary>{_body(verdict)}</details>"


def _body(verdict: Shown) -> str:
    words = "\n".join(str(verdict).splitlines()[1:])
    text = "\n".join(filter(None, (verdict.reason, words)))
    return (f"<pre>{escape(text)}</pre>" if text else "") + _gates(verdict)


def _gates(verdict: Shown) -> str:
    rows = []
    for output in verdict.figures.get("outputs", ()):
        for gate in output["gates"]:
            statistic, limit = float(gate["statistic"]), float(gate["limit"])
            share = statistic / limit if limit else float(statistic != 0)
            rows.append((gate["passed"], -share, output["name"], gate, statistic, limit))
    rows.sort(key=lambda row: row[:2])
    shown = (
        _row((name, gate["name"], f"{a:.3g}", f"{b:.3g}", "" if ok else "beyond", gate["where"]))
        for ok, _, name, gate, a, b in rows[:_MOST_GATES]
    )
    head = _row(("output", "gate", "statistic", "limit", "", "where"), "th")
    return f"<table>{head}{''.join(shown)}</table>" if rows else ""


def _row(cells: Iterable[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
