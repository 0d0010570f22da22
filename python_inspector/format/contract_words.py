"""How a contract is spelled: one table for check(), verify(), recordings and the harness.

`eager+sums-16` is a place of roundings and what happens inside, joined by a plus. The words are
those of fixtures/schema/contracts.json, which the harness has, too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ..aliases import PACKAGE

TF32 = "products-tf32"

_WORDS: Mapping[str, Mapping[str, Any]] = json.loads(
    (resources.files(PACKAGE) / "data" / "contracts.json").read_text()
)


def _roundings_of(what: str) -> tuple[str, ...]:
    return tuple(word for word, asked_of in _WORDS["roundings"].items() if what in asked_of)


ROUNDINGS = _roundings_of("call")
RECORDED = _roundings_of("recording")
"""Of a recording, which rounds where the model's code does."""
NATIVE = _roundings_of("native block")
"""Flash attention's, too, which native blocks alone know."""

_TABLE: Mapping[str, Mapping[str, Any]] = _WORDS["inside"]
INSIDE: Mapping[str, str] = {word: entry["allows"] for word, entry in _TABLE.items()}
"""What happens inside: each word, and what it allows."""


@dataclass(frozen=True)
class Asked:
    """A contract as it was spelled."""

    rounding: str | None = None
    """None: inferred from the bits."""
    inside: frozenset[str] = frozenset()


def asked(contract: str | None, roundings: Collection[str] = ROUNDINGS) -> Asked:
    """ValueError, with all that there is, for what is none."""
    words = [] if contract is None else contract.split("+")
    found = [word for word in words if word in roundings]
    unknown = [word for word in words if word not in roundings and word not in INSIDE]
    if unknown or len(found) > 1:
        raise ValueError(
            f"contract is {contract!r}: {(unknown or found[1:])[0]!r} is none; one of "
            f"{', '.join(roundings)}, and any of {', '.join(INSIDE)}, joined by +"
        )
    rounding = found[0] if found else None
    inside = frozenset(word for word in words if word in INSIDE)
    return Asked(None if rounding == "inferred" else rounding, inside)


def in_order(words: Iterable[str]) -> list[str]:
    """As the table has them."""
    wanted = set(words)
    return [word for word in INSIDE if word in wanted]


def spelled(rounding: str, inside: Iterable[str]) -> str:
    """`eager+sums-16`."""
    return "+".join([rounding, *in_order(inside)])


def fits(word: str, dtypes: Collection[str]) -> bool:
    """Whether the word says something of a call whose operands have these dtypes."""
    return any(dtype in dtypes for dtype in _TABLE[word]["dtypes"])


def misfit(inside: Iterable[str], dtypes: Collection[str], of: str) -> str:
    """Why what is asked for says nothing of what has operands of these dtypes; "" if it does."""
    for word in in_order(inside):
        if not fits(word, dtypes):
            wanted = " or ".join(_NAMES[dtype] for dtype in _TABLE[word]["dtypes"])
            return f"contract has {word}: {of} is {wanted}"
    return ""


_NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
