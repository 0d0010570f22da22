"""A Markdown table of `harness bench` beside PyTorch: best rival, ratio, share of the ceiling."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reports.json_lines import Line, json_lines

KEY = ("case", "shape", "tokens", "context", "dtype", "device")


NUMBERS = {
    "bench": ("median_us", "share", "share_of_copy_of_size"),
    "rival": ("median_us",),
    "ceilings": ("copy_gb_per_s", "matrix_tflop_per_s"),
    "rival_ceilings": ("copy_gb_per_s", "matrix_tflop_per_s"),
}


def checked(place: str, line: Line) -> Line:
    """The line; ValueError naming its place where a field is missing or no number."""
    kind = line.get("type")
    missing = [name for name in KEY if name not in line] if kind in ("bench", "rival") else []
    if missing:
        raise ValueError(f"{place}: a {kind} line lacks {', '.join(missing)}")
    for name in NUMBERS.get(str(kind), ()):
        value = line.get(name)
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"{place}: {name} is {value!r}, expected a number")
    return line


def read_lines(paths: Iterable[Path]) -> list[Line]:
    """The lines of files of `harness bench --json` and `reports rivals`.

    Raises ValueError, naming file and line, for what is none.
    """
    out: list[Line] = []
    for path in paths:
        lines = [checked(place, line) for place, line in json_lines(path)]
        if not any(line.get("type") in ("bench", "rival") for line in lines):
            kind = lines[0].get("type", "other")
            raise ValueError(
                f"{path}: holds {kind} lines, no measurements; "
                "write them with harness bench --json or python -m reports rivals"
            )
        out += lines
    return out


def key_of(line: Line) -> tuple[Any, ...]:
    """What makes two measurements the same; cuda is cuda:0."""
    return tuple("cuda:0" if line[name] == "cuda" else line[name] for name in KEY)


def microseconds(value: float) -> str:
    """Three significant digits and more above 100, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def share_cell(ours: Line) -> str:
    """`81 % of copy`, or `78 % of copy, 99 % of one its size`."""
    share = f"{100 * ours['share']:.0f} % of {ours['share_of']}"
    same = ours.get("share_of_copy_of_size")
    return share if same is None else f"{share}, {100 * same:.0f} % of one its size"


def named_gaps(rivals: list[Line]) -> str:
    """The ways that failed, each with its reason; those that were not asked for are left out."""
    gaps = (r for r in rivals if r.get("gap") not in (None, "quick run"))
    return "; ".join(f"{r['way']}: {r['gap'][:60]}" for r in gaps).replace("|", "/")


def row(ours: Line, rivals: list[Line]) -> list[str]:
    """One measurement of ours beside the best rival; no figure for one that is wrong."""
    sizes = f"{ours['tokens']} / {ours['context']}"
    head = [ours["shape"], ours["case"], sizes, ours["dtype"]]
    if ours["status"] != "pass":
        return [*head, ours["status"], "", "", "", "", ours["reason"][:80].replace("|", "/")]
    measured = [r for r in rivals if r.get("median_us") is not None]
    us = microseconds(ours["median_us"])
    if not measured:
        return [*head, us, "none", "", "", share_cell(ours), named_gaps(rivals)]
    best = min(measured, key=lambda r: r["median_us"])
    ratio = f"{best['median_us'] / ours['median_us']:.2f}x"
    beside = [us, microseconds(best["median_us"]), best["way"], ratio, share_cell(ours)]
    return [*head, *beside, named_gaps(rivals)]


TITLES = (
    "shape", "case", "tokens / keys", "dtype", "ours us", "best rival us", "rival", "speedup",
    "share", "gaps",
)  # fmt: skip


def ceiling_text(line: Line) -> str:
    """What a device reaches at best, by whom it was measured."""
    who = "PyTorch" if line["type"] == "rival_ceilings" else "Plumbline"
    return (
        f"{who} on {line['device']}, {line['dtype']}: copy {line['copy_gb_per_s']:.0f} GB/s, "
        f"matrix {line['matrix_tflop_per_s']:.3g} TFLOP/s"
    )


def markdown(lines: list[Line]) -> str:
    """The ceilings that shares refer to, then the table. Speedup above 1: ours is faster."""
    rivals: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        if line.get("type") == "rival":
            rivals.setdefault(key_of(line), []).append(line)
    ceilings = [ceiling_text(x) for x in lines if x.get("type") in ("ceilings", "rival_ceilings")]
    rows = [row(x, rivals.get(key_of(x), [])) for x in lines if x.get("type") == "bench"]
    table = [TITLES, ("---",) * len(TITLES), *rows]
    return "\n".join([*ceilings, "", *("| " + " | ".join(cells) + " |" for cells in table)]) + "\n"
