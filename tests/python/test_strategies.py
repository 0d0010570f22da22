"""plumbline.strategies: what draw() draws, chosen by Hypothesis."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from python_inspector import WrongError, check, draw, strategies

hypothesis = pytest.importorskip("hypothesis")
SETTINGS: dict[str, Any] = {"deadline": None, "derandomize": True, "database": None}
pytestmark = pytest.mark.usefixtures("harness")


def test_sizes_and_kinds_are_those_of_the_draws() -> None:
    seen = []

    @hypothesis.settings(max_examples=60, **SETTINGS)
    @hypothesis.given(
        strategies.operands(
            draw(("B", "T"), kinds=["normal", "zeros"], B=(1, 5), T=(10, 70)),
            draw(("T", 4), torch.bfloat16),
            draw(("B",), torch.int64, high="T"),
        )
    )
    def look(inputs: Any) -> None:
        x, y, ids = inputs
        assert len(ids) == len(x) and len(y) == x.shape[1] and 10 <= len(y) <= 70
        assert y.dtype == torch.bfloat16 and int(ids.max()) < len(y)
        seen.append((tuple(x.shape), not bool(x[0].any())))

    look()
    assert {zeros for _, zeros in seen} == {True, False}
    tokens = {shape[1] for shape, _ in seen}
    assert len(tokens & {10, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70}) > len(tokens) / 3


def test_a_failure_comes_in_its_smallest_size() -> None:
    shapes = []

    def tail_lost(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        y[16:] = 0
        return y

    @hypothesis.settings(max_examples=30, **SETTINGS)
    @hypothesis.given(strategies.operands(draw(("T", "C"), T=(1, 70), C=(1, 40))))
    def judge(inputs: Any) -> None:
        shapes.append(tuple(inputs[0].shape))
        check(tail_lost, torch.tanh, inputs, explain=False, spread=4)

    with pytest.raises(WrongError, match="fail"):
        judge()
    assert shapes[-1] == (17, 1)


def test_an_extent_without_a_range_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("extent T has no range")):
        strategies.operands(draw(("T", 4)))
