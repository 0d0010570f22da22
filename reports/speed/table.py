"""Markdown tables of `harness bench` and PyTorch: best rival, ratio, share of the ceiling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..json_lines import Line, json_lines
from . import model_table
from .origin import instant, origin_notes

KEY = ("case", "shape", "tokens", "context", "dtype", "device")
NEEDED = {
    "bench": (*KEY, "status", "reason"),
    "rival": (*KEY, "way"),
    "model_bench": (*model_table.KEY, "status", "reason"),
    "rival_model": (*model_table.KEY, "way", "started", "gap"),
}
MEASURED = {  # and has a number where it passed
    "bench": ("median_us", "share"),
    "model_bench": ("prefill_tokens_per_s", "decode_tokens_per_s"),
}
NUMBERS = {
    "bench": ("median_us", "share", "share_of_copy_of_size"),
    "rival": ("median_us",),
    "model_bench": ("prefill_tokens_per_s", "decode_tokens_per_s"),
    "rival_model": ("prefill_ratio", "decode_ratio"),
    "ceilings": ("copy_gb_per_s", "matrix_tflop_per_s"),
    "rival_ceilings": ("copy_gb_per_s", "matrix_tflop_per_s"),
}


def checked(place: str, line: Line) -> Line:
    """The line; ValueError naming its place where a field is missing or of another type."""
    kind = str(line.get("type"))
    needed = NEEDED.get(kind, ())
    if line.get("status") == "pass":
        needed += MEASURED.get(kind, ())
    missing = [name for name in needed if name not in line]
    if missing:
        raise ValueError(f"{place}: a {kind} line lacks {', '.join(missing)}")
    for name in NUMBERS.get(kind, ()):
        value = line.get(name)
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise ValueError(f"{place}: {name} is {value!r}, expected a number above 0")
    try:
        instant(line)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: started is {line['started']!r}: {error}") from error
    return line


def read_lines(paths: Iterable[Path]) -> list[Line]:
    """The lines of files of `harness bench --json`, `reports rivals` and `reports model`.

    Raises ValueError, naming file and line, for what is none and for what was measured twice.
    """
    out: list[Line] = []
    seen: dict[tuple[Any, ...], str] = {}
    for path in paths:
        kinds = set()
        for place, read in json_lines(path):
            line = checked(place, read)
            kind = line.get("type", "other")
            kinds.add(kind)
            if kind in NEEDED:
                same = kind, line.get("way"), *key_of(line)
                if same in seen:
                    raise ValueError(f"{place}: measures what {seen[same]} has: two runs in one")
                seen[same] = place
            out.append(line)
        if not kinds & NEEDED.keys():
            raise ValueError(
                f"{path}: holds {', '.join(sorted(kinds))} lines, no measurements; write them with "
                "harness bench --json, reports rivals or reports model"
            )
    return out


def key_of(line: Line) -> tuple[Any, ...]:
    """What makes two measurements the same; cuda is cuda:0."""
    names = model_table.KEY if "model" in line else KEY
    return tuple("cuda:0" if line[name] == "cuda" else line[name] for name in names)


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
    """One measurement of ours next to the best rival; no figure for one that is wrong."""
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


def table(titles: Sequence[str], rows: list[list[str]]) -> list[str]:
    """Lines of Markdown, none without rows."""
    cells = [titles, ("---",) * len(titles), *rows] if rows else []
    return ["", *("| " + " | ".join(row) + " |" for row in cells)] if cells else []


def markdown(lines: list[Line]) -> str:
    """When it was measured, what shares refer to, and the tables. Speedup above 1: ours is faster.

    Cases of blocks first, then whole models.
    """
    rivals: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        if line.get("type") == "rival":
            rivals.setdefault(key_of(line), []).append(line)
    ceilings = [ceiling_text(x) for x in lines if x.get("type") in ("ceilings", "rival_ceilings")]
    rows = [row(x, rivals.get(key_of(x), [])) for x in lines if x.get("type") == "bench"]
    models = table(model_table.TITLES, model_table.rows(lines))
    head = [*origin_notes(lines), *ceilings]
    return "\n".join([*head, *table(TITLES, rows), *models]) + "\n"
