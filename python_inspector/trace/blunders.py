"""Bugs that people make and small tests miss: a part left out, a tail left undone, eps tenfold.

Recordings do not have them, check() tries them: a verdict tells which would have passed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from .bugs import RULES, Change, Found, Rule, broadcasts, constants_of, instead, out_of
from .sites import Seen, floats

TENFOLD = 10.0
IN_THE_TAIL = " in the last column"
"""Ends the name of a bug whose rest is the name of the same bug everywhere."""

_BIAS_AT = {"addmm": 0, "baddbmm": 0, "addmv": 0, "convolution": 2, "native_layer_norm": 3,
            "native_group_norm": 2}  # fmt: skip
_MOVES = {"_to_copy", "copy", "full", "zeros", "ones", "full_like", "zeros_like", "ones_like",
          "fill", "arange"}  # fmt: skip


def _tails(seen: Seen) -> Found:
    """The last index of the last axis keeps an operand."""
    out = out_of(seen)
    if out is None or seen.writes or seen.site.op in _MOVES or out.ndim == 0 or out.shape[-1] < 2:
        return
    found = [i for i in floats(seen.args) if broadcasts(seen.args[i], out)]
    for i in found[:2]:
        alone = f", its {seen.argument(i)} is the result" if len(found) > 1 else ""
        yield f"tail {i}", f"{seen.site} is skipped{alone}{IN_THE_TAIL}", _tail_of(i)


def _tail_of(i: int) -> Change:
    def change(seen: Seen) -> Any:
        result = seen.run()
        several = isinstance(result, (tuple, list))
        first = (result[0] if several else result).clone()
        first[..., -1] = seen.args[i].expand(first.shape)[..., -1].to(first)
        return (first, *result[1:]) if several else first

    return change


def _biases(seen: Seen) -> Found:
    """The operand that is added is left out."""
    at = _BIAS_AT.get(seen.site.op)
    if at is None or len(seen.args) <= at or not isinstance(seen.args[at], torch.Tensor):
        return
    name = seen.argument(at)
    yield "bias", f"{seen.site} without its {name}", _without(at)


def _without(i: int) -> Change:
    return lambda seen: seen.run(instead(seen, i, torch.zeros_like(seen.args[i])))


def _tenfold(seen: Seen) -> Found:
    yield from constants_of(seen, TENFOLD)


def _last_terms(seen: Seen) -> Found:
    """But for the largest of values, which is another one most of the time."""
    if seen.site.op not in ("amax", "amin"):
        yield from RULES["last term"](seen)


BLUNDERS: tuple[tuple[str, Rule], ...] = (
    ("constant", _tenfold),
    ("skip", _biases),
    ("skip", _tails),
)
"""In addition to RULES; of the same kinds."""


def of_a_pass() -> Iterator[tuple[str, Rule]]:
    """What a verdict that passes is blind to, if it is: gross bugs. What flips a sign or shifts an
    operand shows wherever leaving it out does."""
    yield "skip", RULES["skip"]
    yield "last term", _last_terms
    yield from ((kind, RULES[kind]) for kind in ("swap", "index"))
    yield from BLUNDERS


def of_a_failure() -> Iterator[tuple[str, Rule]]:
    """What a failure may be."""
    yield from RULES.items()
    yield from BLUNDERS


def is_part_of(name: str, others: Collection[str]) -> bool:
    """Whether a bug is one of the last column that is among others for all columns."""
    return name.removesuffix(IN_THE_TAIL) != name and name.removesuffix(IN_THE_TAIL) in others
