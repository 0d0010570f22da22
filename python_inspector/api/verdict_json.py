"""A verdict for programs: one JSON object of at most MOST characters, described by
python_inspector/data/verdict.schema.json. Details stay in Verdict.figures."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

SCHEMA_VERSION = 1
MOST = 2000
"""Characters: about 500 tokens of a language model."""
_WORDS = 300
_ITEMS = 6


def json_of(verdict: Any) -> dict[str, Any]:
    """Of a Verdict."""
    made: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "status": verdict.status,
        "checkpoint": _cut(verdict.checkpoint),
        "reason": _cut(verdict.reason),
        "worst": _worst(verdict),
        "mismatch": _cut(_mismatch(verdict)),
        "known_bug": verdict.known_bug,
        "rounding": _cut(verdict.rounding),
        "blind_to": _first(verdict.blind_to),
        "passing_bugs": None if verdict.passing_bugs is None else _first(verdict.passing_bugs),
        "not_judged": _first(verdict.not_judged),
        "looser_contracts": list(verdict.looser),
        "fingerprint": fingerprint(verdict),
        "replay": verdict.replay,
        "smallest": _cut(verdict.smallest),
        "salt": verdict.salt,
        "timing": verdict.timing and verdict.timing.to_json(),
        "sanitized": _cut(verdict.sanitized),
        "drawn": _cut(verdict.drawn),
        "cases": [{"checkpoint": _cut(c.checkpoint), "status": c.status} for c in verdict.cases],
    }
    for name in ("cases", "blind_to", "passing_bugs", "not_judged"):
        while made[name] and len(json.dumps(made)) > MOST:
            made[name].pop()
    return made


def fingerprint(verdict: Any) -> str:
    """The same for the same failure of the same function, whatever the values were: its status,
    the gate and the output that decide, and the known bug that explains it."""
    gate = _worst(verdict) or {}
    said = [
        verdict.checkpoint.partition("#")[0], verdict.status, gate.get("output"), gate.get("gate"),
        verdict.known_bug,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _worst(verdict: Any) -> dict[str, Any] | None:
    gate = verdict.worst_gate
    if gate is None:
        return None
    return {
        "output": gate["output"],
        "gate": gate["name"],
        "measured": _number(gate["statistic"]),
        "limit": _number(gate["limit"]),
        "ratio": _number(gate["ratio"]),
        "where": _cut(gate["where"]),
    }


def _number(value: Any) -> Any:
    """JSON has no infinity: "inf" and "nan" as words, and four digits are enough."""
    number = float(value)
    return float(f"{number:.4g}") if math.isfinite(number) else str(number)


def _mismatch(verdict: Any) -> str:
    outputs = verdict.figures.get("outputs", ())
    return next((output["mismatch"] for output in outputs if output.get("mismatch")), "")


def _cut(text: str) -> str:
    return text if len(text) <= _WORDS else text[: _WORDS - 3] + "..."


def _first(items: tuple[str, ...]) -> list[str]:
    return [_cut(item) for item in items[:_ITEMS]]
