"""The tables of `inspector bugs`."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ..trace.bugs import KINDS
from ..trace.resolution import Fate
from .bug_survey import Alarm, Found, Survey

_LISTED = 6
"""Survivors that are named."""

Row = Sequence[str]


def text(surveys: Sequence[Survey]) -> Iterator[str]:
    """For a terminal."""
    for table in (_by_kind(surveys), _by_family(surveys)):
        yield from _aligned(table)
        yield ""
    yield from _sentences(surveys)
    yield from _survivors(surveys)


def markdown(surveys: Sequence[Survey]) -> Iterator[str]:
    """The page fixtures/bugs.md."""
    yield "# Bugs planted in any call"
    yield ""
    yield from _wrapped(_ABOUT)
    yield ""
    yield from _sentences(surveys)
    yield from _as_markdown(_by_kind(surveys))
    yield from _as_markdown([row[0], *row[3:6]] for row in _by_family(surveys))
    yield ""
    yield from _survivors(surveys)
    yield ""
    names = [survey.model for survey in surveys if not survey.failed]
    yield from _wrapped("Architectures: " + ", ".join(names) + ".")


_ABOUT = """Made by `inspector bugs --markdown`, from tiny models of architectures that the package
has no line about. A bug counts once, killed in float32 or in bf16; the columns of these dtypes are
each alone. *No bug*: the same function in exact arithmetic. *Below*: its exact effect is smaller,
in every gate, than what correct kernels differ by on average. A correct output is of the same
code with other numbers of threads, products split along K, sums reversed, float32 throughout, and
torch's fused attention. How bugs are planted:
[planted bugs](../python_inspector/trace.md#planted-bugs)."""


def _as_markdown(table: Iterable[Row]) -> Iterator[str]:
    header, *rows = table
    yield ""
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    yield from ("| " + " | ".join(row) + " |" for row in rows)


def _wrapped(paragraph: str) -> Iterator[str]:
    yield from textwrap.wrap(" ".join(paragraph.split()), 100, break_on_hyphens=False)


def _by_kind(surveys: Sequence[Survey]) -> Iterator[Row]:
    yield ["kind", "f32", "bf16", "killed", "of", "share", "no bug", "below"]
    groups: dict[str, list[Found]] = defaultdict(list)
    for found in _all(surveys):
        groups[found.kind].append(found)
    for kind in KINDS:
        if groups[kind]:
            yield _row(kind, groups[kind])
    yield _row("all", list(_all(surveys)))


def _by_family(surveys: Sequence[Survey]) -> Iterator[Row]:
    """By what the module does, as its class says."""
    yield ["call", "f32", "bf16", "killed", "of", "share", "no bug", "below"]
    groups: dict[str, list[Found]] = defaultdict(list)
    for found in _all(surveys):
        groups[_family(found.place.kind)].append(found)
    for family in sorted(groups):
        yield _row(family, groups[family])


def _family(kind: str) -> str:
    words = {
        "norm": "norm", "rotary": "rotary", "rope": "rotary", "rotate": "rotary",
        "decoderlayer": "layer", "block": "layer", "layer": "layer", "router": "router",
        "gate": "router", "expert": "experts", "moe": "MoE", "attention": "attention",
        "mlp": "MLP", "feedforward": "MLP", "mixer": "mixer", "mamba": "mixer", "conv": "mixer",
    }  # fmt: skip
    lower = kind.lower().replace("_", "")
    return next((family for word, family in words.items() if word in lower), "other")


def _row(name: str, found: Sequence[Found]) -> Row:
    fates = _together(found)
    counts = Counter(fates)
    killed, survived = counts[Fate.KILLED], counts[Fate.SURVIVES]
    return [
        name,
        *(_share(_killed(found, dtype)) for dtype in ("f32", "bf16")),
        str(killed),
        str(killed + survived),
        _percent(killed, killed + survived),
        str(counts[Fate.SAME_FUNCTION]),
        str(counts[Fate.BELOW_RESOLUTION]),
    ]


def _killed(found: Iterable[Found], dtype: str) -> tuple[int, int]:
    counts = Counter(item.fate for item in found if item.dtype == dtype)
    return counts[Fate.KILLED], counts[Fate.KILLED] + counts[Fate.SURVIVES]


def _share(counts: tuple[int, int]) -> str:
    return _percent(*counts)


def _together(found: Iterable[Found]) -> list[Fate]:
    """Of each bug: what float32 and bf16 say of it together."""
    fates: dict[object, set[Fate]] = defaultdict(set)
    for item in found:
        fates[item.key].add(item.fate)
    order = (Fate.KILLED, Fate.SURVIVES, Fate.BELOW_RESOLUTION, Fate.SAME_FUNCTION)
    return [next(fate for fate in order if fate in of) for of in fates.values()]


def _all(surveys: Sequence[Survey]) -> Iterator[Found]:
    for survey in surveys:
        yield from survey.found


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _sentences(surveys: Sequence[Survey]) -> Iterator[str]:
    fates = Counter(_together(_all(surveys)))
    killed, survived = fates[Fate.KILLED], fates[Fate.SURVIVES]
    alarms: list[Alarm] = [alarm for survey in surveys for alarm in survey.alarms]
    judged = sum(survey.judged for survey in surveys)
    same = sum(survey.same_bits for survey in surveys)
    ran = [survey for survey in surveys if not survey.failed]
    yield (
        f"{len(ran)} architectures: {killed} of {killed + survived} bugs killed "
        f"({_percent(killed, killed + survived)});"
    )
    yield f"{same} more changed no bit. {len(alarms)} false alarms among {judged} correct outputs."
    for alarm in alarms[:_LISTED]:
        yield (
            f"- false alarm: {alarm.place.model} {alarm.place.call} ({alarm.dtype}), "
            f"{alarm.variant}: {alarm.output} at {alarm.margin:.3g} of its limit"
        )
    for survey in surveys:
        for line in survey.failed:
            yield f"- did not run: {survey.model} {line}"


def _survivors(surveys: Sequence[Survey]) -> Iterator[str]:
    """Bugs that neither dtype kills, the least visible first."""
    by_key: dict[object, list[Found]] = defaultdict(list)
    for found in _all(surveys):
        by_key[found.key].append(found)
    left = [
        items
        for items in by_key.values()
        if all(item.fate is not Fate.KILLED for item in items)
        and any(item.fate is Fate.SURVIVES for item in items)
    ]
    if not left:
        return
    yield f"Survivors ({len(left)}; of their limits):"
    yield ""
    left.sort(key=lambda items: max(item.margin for item in items))
    for items in left[:_LISTED]:
        first = items[0]
        margins = ", ".join(f"{item.dtype} {item.margin:.2g}" for item in items)
        line = f"- {first.place.model} {first.place.kind}: {first.bug} ({margins})"
        yield from textwrap.wrap(line, 100, subsequent_indent="  ", break_on_hyphens=False)
    if len(left) > _LISTED:
        yield f"- and {len(left) - _LISTED} more"


def _aligned(table: Iterable[Row]) -> Iterator[str]:
    rows = list(table)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        first = row[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join((first, *rest))
