"""The judgement of one call, as verify() and check() return it: words, figures, HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import public
from .verdict_html import html_of
from .verdict_json import json_of

if TYPE_CHECKING:
    from .timing import Timing

MOST_BLIND = 6
"""Bugs that are named in the text."""


@dataclass(frozen=True)
class Verdict:
    """The judgement of one checkpoint; str() says all that matters of it."""

    checkpoint: str
    block: str
    status: str
    """pass, fail, blind, unsupported, ... of the harness, or error: the function raised one."""
    reason: str
    figures: dict[str, Any] = field(repr=False)
    """The whole JSON object of the result; empty where the harness had nothing to judge."""
    diagnosis: str = ""
    """Of a failure in 16 bits: which roundings its bits follow."""
    known_bug: str | None = None
    """The bug that a failure is, where a known one explains it; the reason says so, too."""
    blind_to: tuple[str, ...] = ()
    """What the block has and this checkpoint cannot see."""
    passing_bugs: tuple[str, ...] | None = None
    """Known bugs that would pass here; None: not measured."""
    not_judged: tuple[str, ...] = ()
    """Optional outputs that the function did not return."""
    doubts: tuple[str, ...] = ()
    """Where the reference's own gradients are not believed, and lend no limit; where it is far from
    what is said of its operations; and of a failure which operations are not seen."""
    planted: tuple[int, int] | None = None
    """How many gross bugs check() planted to know what a pass is blind to, of how many that there
    are; fewer where time was up."""
    replay: str = ""
    """The command that judges a kept case again: check(keep=DIR)."""
    smallest: str = ""
    """Of a kept failure the smallest case that fails: its operands, and what compares it."""
    salt: int | None = None
    """With which check(sealed=..., salt=...) draws the inputs again; None where none was drawn."""
    timing: Timing | None = None
    """Of what passes, with check(sealed=Sealed(time=True))."""
    sanitized: str = ""
    """What compute-sanitizer says of what passes, with check(sealed=Sealed(sanitize=True))."""
    drawn: str = ""
    """What draw() takes to draw these operands again, and the sizes of its named extents."""
    cases: tuple[Verdict, ...] = ()
    """Where check() judged several sets of inputs: the verdict on each; this one is on all."""

    @classmethod
    def of(cls, item: dict[str, Any]) -> Verdict:
        """From the object of a checkpoint in the harness's JSON."""
        bugs = item.get("passing_bugs")
        known = item.get("known_bug")
        return cls(
            checkpoint=item["checkpoint"],
            block=item["block"],
            status=item["status"],
            reason=item["reason"],
            figures=item,
            diagnosis=item.get("diagnosis", ""),
            known_bug=known["bug"] if known else None,
            blind_to=tuple(item.get("blind_to", ())),
            passing_bugs=None if bugs is None else tuple(bugs),
            not_judged=tuple(item.get("not_judged", ())),
        )

    @property
    def passed(self) -> bool:
        return self.status == "pass"

    @property
    def rounding(self) -> str:
        """Which rounding points a 16-bit output follows; empty where that was not inferred."""
        outputs = self.figures.get("outputs", ())
        return "; ".join(dict.fromkeys(filter(None, (it["rounding"] for it in outputs))))

    @property
    def worst_gate(self) -> dict[str, Any] | None:
        """Of all outputs the gate nearest to its limit or farthest beyond it, with its `ratio`;
        None where nothing was judged."""
        gates = [
            {"output": output["name"], **gate, "ratio": _ratio(gate)}
            for output in self.figures.get("outputs", ())
            for gate in output["gates"]
        ]
        return max(gates, key=lambda gate: (not gate["passed"], gate["ratio"]), default=None)

    @property
    def failed_gates(self) -> tuple[str, ...]:
        """Names of all gates beyond their limits, the farthest first; none of what did not fail."""
        gates = [gate for output in self.figures.get("outputs", ()) for gate in output["gates"]]
        failed = [gate for gate in gates if self.status == "fail" and not gate["passed"]]
        failed.sort(key=_ratio, reverse=True)
        return tuple(dict.fromkeys(gate["name"] for gate in failed))

    def ratio_of(self, gate: str) -> float:
        """Of all outputs the largest statistic / limit of this gate; 0 where none has it."""
        gates = [it for output in self.figures.get("outputs", ()) for it in output["gates"]]
        return max((_ratio(it) for it in gates if it["name"] == gate), default=0.0)

    @property
    def golden_suspect(self) -> str:
        """Why the recorded reference is not believed, and lends no limit; empty where it is."""
        outputs = self.figures.get("outputs", ())
        return "; ".join(filter(None, (output["golden_suspect"] for output in outputs)))

    @property
    def looser(self) -> tuple[str, ...]:
        """What kernels may do inside by its contract: limits are wider for it."""
        return tuple(self.figures.get("looser_contracts", ()))

    @property
    def ill_conditioned(self) -> str:
        """What of the outputs is not judged, because correct kernels do not agree on it."""
        outputs = self.figures.get("outputs", ())
        return "; ".join(filter(None, (output["ill_conditioned"] for output in outputs)))

    def __str__(self) -> str:
        lines = [f"{self.checkpoint} ({self.block}): {self.status}"]
        if self.reason:
            lines[0] += f": {self.reason}"
        told = (
            ("", self.golden_suspect),
            *(("", words) for words in self.doubts),
            ("", self.ill_conditioned if self.ill_conditioned != self.reason else ""),
            *(("", words) for words in self._mismatches()),
            ("", self.diagnosis),
            ("blind to: ", self._blind_words()),
            ("would pass here: ", ", ".join(self.passing_bugs or ())),
            ("not judged: ", ", ".join(self.not_judged)),
            ("by a looser contract: ", ", ".join(self.looser)),
            ("again: ", self.replay),
            ("smallest case that fails: ", self.smallest),
            ("drawn with: ", "" if self.passed or self.cases else self.drawn),
            ("draws these inputs again: ", "" if self.salt is None else f"salt={self.salt}"),
            ("time of a call: ", "" if self.timing is None else str(self.timing)),
            ("sanitizer: ", self.sanitized),
        )
        return "\n".join(lines + [f"  {title}{words}" for title, words in told if words])

    def _mismatches(self) -> list[str]:
        """Of each output that fails how many elements do, and how far at most."""
        outputs = self.figures.get("outputs", ())
        named = "{name}: {mismatch}" if len(outputs) > 1 else "{mismatch}"
        return [named.format(**output) for output in outputs if output.get("mismatch")]

    def _blind_words(self) -> str:
        words = ", ".join(self.blind_to[:MOST_BLIND])
        if len(self.blind_to) > MOST_BLIND:
            words += f" and {len(self.blind_to) - MOST_BLIND} more"
        if self.planted is not None and self.planted[0] < self.planted[1]:
            tried, of = self.planted
            words += f" (time was up after {tried} of {of} planted bugs)"
        return words.strip()

    def to_json(self) -> dict[str, Any]:
        """For programs: at most about 500 tokens, as data/verdict.schema.json describes it."""
        return json_of(self)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_of(self)


@public
class WrongError(AssertionError):
    """What check() raises: its text is the verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


def by_its_verdict(raised: Any) -> bool:
    """Whether pytest leaves a frame out (__tracebackhide__): of a verdict, not of an error."""
    return isinstance(raised.value, WrongError)


Listener = Callable[[Verdict], None]
_listener: ContextVar[Listener | None] = ContextVar("plumbline_listener", default=None)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Tells `listener` of every verdict that check() and verify() come to inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def announce(verdict: Verdict) -> None:
    """To whoever listens."""
    if (listener := _listener.get()) is not None:
        listener(verdict)


def _ratio(gate: dict[str, Any]) -> float:
    """Statistic / limit: infinite for one that failed against 0, or is no number."""
    statistic, limit = float(gate["statistic"]), float(gate["limit"])
    if statistic != statistic or limit != limit:
        return float("inf")
    if limit == 0 or statistic == float("inf"):
        return 0.0 if statistic == 0 else float("inf")
    return statistic / limit
