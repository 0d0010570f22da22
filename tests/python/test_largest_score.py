"""What a recording states as its largest score is what the oracle's operands give."""

from __future__ import annotations

import torch

from python_inspector.taps.masks import largest_score


def test_scores_that_are_no_numbers_do_not_count() -> None:
    q, k = torch.ones(1, 2, 3, 4), torch.ones(1, 1, 3, 4)
    allowed = torch.ones(3, 3, dtype=torch.bool).tril()
    assert largest_score(q, k, allowed, 0.5, None) == 2
    q[0, 0, 1] = torch.nan
    assert largest_score(q, k, allowed, 0.5, None) == 2
    assert largest_score(q * torch.nan, k, allowed, 0.5, None) == 0
    assert largest_score(q * torch.nan, k, allowed, 0.5, 30.0) == 0
    k[0, 0, 0, 0] = torch.inf
    assert largest_score(q, k, allowed, 0.5, None) == torch.inf
