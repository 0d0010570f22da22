"""Choices within rounding: what is right there, how much is judged, when that is too little."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal, wrong

from python_inspector import check
from python_inspector.api.verdict import Verdict, WrongError
from python_inspector.format.validate import validate
from python_inspector.recorder.one_call import OneCallRecording
from python_inspector.trace.orders import Places, turns

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

Kernel = Callable[..., torch.Tensor]


def tied(rows: int = 6, columns: int = 8) -> torch.Tensor:
    """Rows 1 and 3 have a tie for the largest, of two and of three."""
    x = torch.stack([torch.arange(columns).roll(i).float() for i in range(rows)])
    x[1, [2, 5]] = 50
    x[3, [0, 4, 7]] = 50
    return x


def with_choice(y: torch.Tensor, row: int, value: int) -> torch.Tensor:
    y = y.clone()
    y[row] = value
    return y


def details(verdict: Verdict) -> str:
    return "\n".join(verdict.figures["details"])


DERIVED: dict[str, Kernel] = {
    "argmax": lambda x: x.argmax(-1),
    "int32": lambda x: x.argmax(-1).to(torch.int32),
    "moved": lambda x: x.max(-1).indices[None].expand(2, -1).clone()[0],
    "shifted": lambda x: (x.topk(1, -1).indices + 0).squeeze(-1),
    "looked up": lambda x: torch.arange(8, device=x.device)[x.argmax(-1)],
}


@pytest.mark.parametrize("name", DERIVED)
def test_of_a_tie_each_index_is_right_and_no_other(name: str) -> None:
    like, x = DERIVED[name], tied()
    right = like(x)
    for row, values in {1: (2, 5), 3: (0, 4, 7)}.items():
        for value in values:
            verdict = check(lambda x, r=row, v=value: with_choice(right, r, v), like, inputs=x)
        for value in (3, -3, 123456):
            wrong(lambda x, r=row, v=value: with_choice(right, r, v), like, x)
    assert "2 of 6 choices are open" in details(verdict)
    assert "(3 values)" in details(verdict)
    assert "6 of 6 elements judged" in details(verdict)
    wrong(lambda x: with_choice(right, 0, 3), like, x)


def test_indices_of_a_top_k_are_different_ones() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return x.topk(2, -1).indices

    x = tied()
    right = like(x)
    verdict = check(lambda x: with_choice(right, 1, torch.tensor([5, 2])), like, inputs=x)
    assert "4 of 12 choices are open, in 2 of 6 rows" in details(verdict)
    for pair in ([0, 7], [7, 4], [4, 0]):
        check(lambda x, p=pair: with_choice(right, 3, torch.tensor(p)), like, inputs=x)
    for row, pair in ((1, [5, 5]), (3, [4, 4]), (1, [2, 7]), (0, [7, 7])):
        wrong(lambda x, r=row, p=pair: with_choice(right, r, torch.tensor(p)), like, x)


def test_a_sorted_row_of_equal_values_may_have_any_order() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return x.argsort(-1)

    x = torch.tensor([[3.0, 1, 1, 2], [0, 0, 0, 0], [4, 3, 2, 1]])
    check(lambda x: torch.tensor([[2, 1, 3, 0], [3, 1, 0, 2], [3, 2, 1, 0]]), like, inputs=x)
    wrong(lambda x: torch.tensor([[1, 1, 3, 0], [3, 1, 0, 2], [3, 2, 1, 0]]), like, x)
    wrong(lambda x: torch.tensor([[3, 1, 2, 0], [3, 1, 0, 2], [3, 2, 1, 0]]), like, x)


def test_what_computed_values_tell_apart_is_decided() -> None:
    def like(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).argmax(-1)

    x, w = normal(6, 32), normal(32, 8)
    w[:, 5] = w[:, 2]  # the same in any order of sums, or nearly
    right = like(x, w)
    assert 2 in right
    row = int((right == 2).nonzero()[0])
    check(lambda x, w: with_choice(right, row, 5), like, inputs=(x, w))
    wrong(lambda x, w: with_choice(right, row, 3), like, (x, w))


def test_a_count_of_choices_is_not_judged_where_they_are_open() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(x.argmax(-1), 12).sum(0)

    x = tied(20, 12)
    verdict = check(like, like, inputs=x)
    assert "5 of them are not judged" in details(verdict)
    assert "7 of 12 elements judged" in details(verdict)


class Mixture(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.Parameter(normal(4, 8, 8, seed=9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("td,tde->te", x, self.experts[x[:, :4].argmax(-1)])


@pytest.mark.parametrize("tied_rows", [1, 3, 4, 6])
def test_too_little_that_is_judged_proves_nothing(tied_rows: int) -> None:
    x = normal(6, 8)
    x[:, 0] += 9
    x[:tied_rows, 1] = x[:tied_rows, 0]
    module = Mixture()
    if tied_rows <= 3:
        verdict = check(module, like=module, inputs=x)
        assert verdict.reason.startswith(f"{48 - 8 * tied_rows} of 48 elements judged")
        return
    with pytest.raises(WrongError) as raised:
        check(module, like=module, inputs=x)
    assert raised.value.verdict.status == "blind"
    if tied_rows < 6:
        assert "16 of 48 elements judged" in raised.value.verdict.reason
        assert "less than half proves nothing" in raised.value.verdict.reason


def test_what_a_recording_says_of_them(tmp_path: Path) -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return x.topk(2, -1).indices

    calls = OneCallRecording(like, weights={})
    output = calls.add(((tied(),), {})).checkpoint.outputs["out"]
    assert calls.save(tmp_path / "r")
    assert validate(tmp_path / "r") == []
    assert output.legal is not None and output.legal.distinct == 1


# Orders.


def every(order: Any, doubtful: Any, places: Places, first: int) -> set[tuple[int, ...]]:
    found = turns(torch.tensor([order]), torch.tensor([doubtful]), places, first)
    return {tuple(o[0].tolist()) for o in found.orders} | {tuple(order[:first])}


def test_a_value_stands_where_rounding_may_bring_it() -> None:
    values = torch.tensor([[4.0, 3.9, 3.8, 1.0]])
    for tolerance, first, last in (
        (0.0, [0, 1, 2, 3], [0, 1, 2, 3]),
        (0.06, [0, 0, 1, 3], [1, 2, 2, 3]),
        (0.2, [0, 0, 0, 3], [2, 2, 2, 3]),
    ):
        places = Places.of(values, torch.full_like(values, tolerance))
        assert places.first.tolist() == [first]
        assert places.last.tolist() == [last]
    chain = Places.of(values, torch.full_like(values, 0.06))
    assert chain.candidates(3).tolist() == [[2, 3, 2]]
    shown = every([0, 1, 2, 3], [True, True, False], chain, 3)
    assert (2, 1, 0) not in shown and (1, 0, 2) in shown and (0, 2, 1) in shown


def test_orders_show_every_value_at_every_place_of_a_tie() -> None:
    same = Places.of(torch.zeros(1, 5), torch.zeros(1, 5))
    shown = every([0, 1, 2, 3, 4], [True] * 4, same, 2)
    assert {first for first, _ in shown} == {second for _, second in shown} == set(range(5))


def nucleus(logits: torch.Tensor, *, last_first: bool, wide: bool, p: float = 0.8) -> torch.Tensor:
    """Masks what is less likely than the likeliest that make up p. `last_first`: of ties the last
    one comes first, which is right, too; `wide`: sums are not rounded."""
    n = logits.shape[-1]
    given = logits.flip(-1) if last_first else logits
    order = given.argsort(dim=-1, descending=True, stable=True)
    order = n - 1 - order if last_first else order
    ordered = logits.gather(-1, order)
    dropped = (ordered.float() if wide else ordered).softmax(-1).cumsum(-1) > p
    dropped = torch.nn.functional.pad(dropped[..., :-1], (1, 0), value=False)
    return logits.masked_fill(dropped.gather(-1, order.argsort(-1)), -torch.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_which_of_two_ties_is_masked_is_open(
    dtype: torch.dtype, *, last_first: bool, wide: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(3, 96, generator=generator)).half()
    logits[2, :8], logits[2, 8:] = 9.0, 0.0  # an eighth each, nearly: seven of them make up p
    logits = logits.to(dtype)

    def like(x: torch.Tensor) -> torch.Tensor:
        return nucleus(x, last_first=False, wide=False)

    def kernel(x: torch.Tensor, **changed: Any) -> torch.Tensor:
        return nucleus(x, **{"last_first": last_first, "wide": wide} | changed)

    check(kernel, like=like, inputs=logits)
    wrong(lambda x: kernel(x, p=0.7), like, logits)
    wrong(lambda x: kernel(x).nan_to_num(neginf=torch.nan), like, logits)
    ahead = torch.arange(96) == 95
    wrong(lambda x: torch.where(ahead, x, kernel(x)), like, logits)
