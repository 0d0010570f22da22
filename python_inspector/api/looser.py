"""Of a failure that no bug but a rounding explains: the contract by which it would pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ..errors import RecordError
from ..format.contract_words import INSIDE, Asked, fits
from .verdict import Verdict

if TYPE_CHECKING:
    from ..trace.trials import Deadline


class Judge(Protocol):
    def __call__(self, contract: Asked, *, few: bool) -> Verdict:
        """By FEW simulated kernels, or as many as were asked for."""


FEW = 4
"""Simulated kernels that tell whether it is worth while to ask."""
_MOST_BEYOND = 1e3
"""Of the whole error, in its limits: of sums of 256 to 4096 terms in 16 bits, and products in TF32,
it is 190 times its limit at most."""
_MOST_GAIN, _MOST_GAIN_OF_TF32 = 10.0, 1e3
"""Of the gain: 8 times its limit at most in 16 bits. Of products in TF32 it is a draw, the larger
the more exact the reference's sums are: of 512 terms 60 on a CPU, above 100 on a GPU."""


def with_contract(
    verdict: Verdict,
    dtypes: Collection[str],
    judge: Judge,
    deadline: Deadline,
) -> Verdict:
    """The verdict, which says so where `judge`, by a contract that allows one thing more inside,
    passes the same outputs; `dtypes` are theirs."""
    if verdict.status != "fail" or not verdict.failed_gates:
        return verdict
    most_gain = _MOST_GAIN_OF_TF32 if "f32" in dtypes else _MOST_GAIN
    if verdict.ratio_of("tensor") > _MOST_BEYOND or verdict.ratio_of("gain") > most_gain:
        return verdict
    from ..trace.bugs import is_rounding

    if deadline.is_over or (verdict.known_bug and not is_rounding(verdict.known_bug)):
        return verdict
    words = [word for word in INSIDE if fits(word, dtypes)]
    if not words:
        return verdict
    try:
        found = judge(Asked(inside=frozenset(words)), few=True)
    except RecordError:  # no operand has the dtype of one
        return verdict
    if not found.passed:  # nor by one of them
        return verdict
    for word in words:
        if word not in " ".join(found.looser) or deadline.is_over:
            continue
        if judge(Asked(inside=frozenset([word])), few=False).passed:
            told = f'passes with contract="{word}": {INSIDE[word]}'
            return replace(verdict, diagnosis="; ".join(filter(None, (verdict.diagnosis, told))))
    return verdict
