"""Indices that a planted bug led astray are refused where they would end the device's use."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from python_inspector.trace import bounds

TABLE = torch.zeros(4, 6)


@pytest.fixture(autouse=True)
def _accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "is_host", lambda device: False)


@pytest.mark.parametrize(
    ("op", "args", "size"),
    [
        ("gather", (TABLE, 1), 6),
        ("scatter_add", (TABLE, 0), 4),
        ("index_select", (TABLE, -1), 6),
        ("take", (TABLE,), 24),
        ("embedding", (TABLE,), 4),
    ],
)
def test_an_index_beyond_its_axis_is_refused(op: str, args: Any, size: int) -> None:
    bounds.require_inside(op, (*args, torch.tensor([0, size - 1])))
    bounds.require_inside(op, (*args, torch.tensor([], dtype=torch.int64)))
    with pytest.raises(IndexError, match=f"{op}: index {size} of {size}"):
        bounds.require_inside(op, (*args, torch.tensor([0, size])))
    lowest = -size if op == "take" else 0
    bounds.require_inside(op, (*args, torch.tensor([lowest])))
    with pytest.raises(IndexError, match=f"index {lowest - 1} of {size}"):
        bounds.require_inside(op, (*args, torch.tensor([lowest - 1])))


def test_each_index_has_its_axis() -> None:
    inside, beyond = torch.tensor([3, -6]), torch.tensor([0, 6])
    bounds.require_inside("index", (TABLE, [None, inside]))
    with pytest.raises(IndexError, match="index 6 of 6"):
        bounds.require_inside("index_put", (TABLE, [None, beyond]))
    bounds.require_inside("index", (TABLE, [torch.ones(4, dtype=torch.bool)]))
    bounds.require_inside("mm", (TABLE, beyond))


@pytest.mark.parametrize("op", ["nll_loss_forward", "nll_loss_backward"])
def test_a_class_beyond_the_last_is_refused(op: str) -> None:
    def require(*classes: int) -> None:
        args = (TABLE, torch.tensor(classes), None, 1, -100)
        bounds.require_inside(op, args if op == "nll_loss_forward" else (TABLE[0, 0], *args))

    require(5, -100, 0)
    with pytest.raises(IndexError, match=f"{op}: index 6 of 6"):
        require(0, 6)
    with pytest.raises(IndexError, match=f"{op}: index -101 of 6"):
        require(-101, 3)


def test_a_bias_is_in_aligned_rows() -> None:
    op, q, mask = (
        "_scaled_dot_product_efficient_attention",
        torch.zeros(2, 2, 9, 8),
        torch.rand(9, 9),
    )
    given = (q, q, q, mask.expand(2, 2, 9, 9), True)
    aligned = bounds.with_aligned_bias(op, given)
    assert aligned[3].stride(-2) == 16 and torch.equal(aligned[3], given[3])
    assert aligned[0] is q and aligned[4] is True
    assert bounds.with_aligned_bias(op, aligned) is aligned
    later = (q, q, q, torch.rand(2, 2, 9, 16)[..., 1:10])
    assert bounds.with_aligned_bias(op, later)[3].storage_offset() == 0
    assert bounds.with_aligned_bias(op, (q, q, q, None, True))[3] is None
    assert bounds.with_aligned_bias("mm", given) is given
