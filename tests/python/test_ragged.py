"""invariant() of packed sequences: cu_seqlens says where each begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from batch_variance import normal, total
from torch import Tensor

from python_inspector import UsageError, WrongError, check, invariant
from python_inspector.api.relations import RELATIONS, Variation, variations
from python_inspector.api.rows import rows_of, varied

Kernel = Callable[..., Any]
CU = torch.tensor([0, 3, 16, 23, 28], dtype=torch.int32)
X = normal(28, 16)


def attention(x: Tensor, cu: Tensor, tile: Callable[[int], int], first: int = 0) -> Tensor:
    """Of each token on the tokens of its sequence before it, and `first` ones of others; sums go
    over so many lanes."""
    out = torch.zeros_like(x)
    for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        for at in range(begin, end):
            keys = x[max(0, begin - first) : at + 1]
            lanes = tile(end - begin)
            weights = torch.nn.functional.pad(
                (keys * x[at]).cumsum(-1)[:, -1].exp(), (0, -len(keys) % lanes)
            )
            values = torch.nn.functional.pad(keys, (0, 0, 0, -len(keys) % lanes))
            out[at] = total((weights[:, None] * values).mT, lanes) / total(weights, lanes)
    return out


def by_own_length(x: Tensor, cu: Tensor, longest: int) -> Tensor:
    return attention(x, cu, lambda length: 2 if length < 8 else 8)


def by_longest(x: Tensor, cu: Tensor, longest: int) -> Tensor:
    return attention(x, cu, lambda _: 2 if longest < 8 else 8)


def by_all_tokens(x: Tensor, cu: Tensor, longest: int) -> Tensor:
    return attention(x, cu, lambda _: 4 if len(x) % 4 else 8)


def with_the_token_before(x: Tensor, cu: Tensor, longest: int) -> Tensor:
    return attention(x, cu, lambda _: 8, first=1)


def by_the_next_length(x: Tensor, cu: Tensor, longest: int) -> Tensor:
    """A sequence's tile is that of the one after it; which of them that is does not matter."""
    lengths = cu.diff().tolist()
    following = lengths[1:] + lengths[:1]
    tiles = dict(zip(lengths, following, strict=True))
    return attention(x, cu, lambda length: 2 if tiles[length] < 4 else 8)


def broken(kernel: Kernel, inputs: Any, vary: Any = RELATIONS, **options: Any) -> set[str]:
    with pytest.raises(WrongError) as raised:
        invariant(kernel, inputs, vary, **options)
    outputs = raised.value.verdict.figures["outputs"]
    return {gate["name"] for it in outputs for gate in it["gates"] if not gate["passed"]}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_sequence_is_the_same_alone_and_packed_with_others(dtype: torch.dtype) -> None:
    verdict = invariant(by_own_length, (X, CU.to(dtype), 13))
    assert "further calls of rows of the sequences in x (axis 0)" in verdict.reason
    assert all(f"{name} " in verdict.reason for name in set(RELATIONS) - {"stream"})


@pytest.mark.parametrize(
    ("kernel", "relation"),
    [
        (by_longest, "batch"),
        (by_all_tokens, "chunks"),
        (with_the_token_before, "neighbours"),
        (by_the_next_length, "ragged"),
    ],
)
def test_a_sequence_that_depends_on_others_is_found(kernel: Kernel, relation: str) -> None:
    assert broken(kernel, (X, CU, 13), relation) == {relation}


def test_the_place_is_told_of_the_whole_call() -> None:
    with pytest.raises(
        WrongError, match=r"position: out \[3, 0\] is .* with the rows moved by one"
    ):
        invariant(with_the_token_before, (X, CU, 13), "position")


def test_operands_of_a_sequence_go_with_it() -> None:
    """States, lengths and the longest length."""

    def kernel(x: Tensor, state: Tensor, cu: Tensor, lengths: Tensor, longest: int) -> Any:
        assert lengths.tolist() == cu.diff().tolist() and longest == max(
            lengths.tolist(), default=0
        )
        parts = x.split(lengths.tolist())
        ends = [s + it.cumsum(0)[-1:].sum(0) for it, s in zip(parts, state, strict=True)]
        return torch.cat([it + s for it, s in zip(parts, state, strict=True)]), torch.stack(ends)

    given = (X, normal(4, 16).to(X.device), CU, CU.diff(), 13)
    verdict = invariant(kernel, given)
    assert "x (axis 0), state (axis 0)" in verdict.reason
    assert not [it for it in verdict.not_judged if "stream" not in it]
    other = lambda *it: (kernel(*it)[0], kernel(*it)[1] + len(it[1]) % 2)  # noqa: E731
    assert broken(other, given, "batch") == {"batch"}


def test_keys_may_have_other_lengths_than_queries() -> None:
    cu_k = torch.tensor([0, 5, 5, 30, 41])

    def kernel(q: Tensor, k: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
        parts = zip(q.split(cu_q.diff().tolist()), k.split(cu_k.diff().tolist()), strict=True)
        return torch.cat([a + b.cumsum(0)[-1:].sum(0) for a, b in parts])

    given = (X, normal(41, 16).to(X.device), CU, cu_k)
    assert "q (axis 0), k (axis 0)" in invariant(kernel, given).reason
    everything = lambda q, k, a, b: kernel(q, k, a, b) + 0 * k.sum()  # noqa: E731
    assert "neighbours" in broken(everything, given)


def test_lengths_of_a_varied_call() -> None:
    given = {"x": X, "cu": CU}
    rows = rows_of(given, None)
    assert rows.count == 4 and rows.axes == {"x": 0}
    sizes = {it.size: it for it in variations("ragged", 4) if 1 in it.judged}
    for size, of in (("one token", 1), ("half their length", 4), ("twice their length", 14)):
        ((x, cu), _), bound = varied(((X, CU), {}), given, rows, sizes[size])
        lengths = cu.diff().tolist()
        assert lengths[1] == 13 and cu.dtype == CU.dtype and len(x) == sum(lengths)
        assert (2 in sizes[size].judged and lengths[2] == 7) or lengths[2] == of
        assert torch.equal(x[cu[1] : cu[2]], X[3:16]) and bound["cu"] is cu
    ((x, cu), _), _ = varied(((X, CU), {}), given, rows, Variation("batch", "", (2, 0), (0, 1)))
    assert cu.tolist() == [0, 7, 10] and torch.equal(x, torch.cat([X[16:23], X[:3]]))


def test_the_tokens_may_be_along_another_axis() -> None:
    def kernel(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        out = by_own_length(x[0], cu, 13)
        return out[None], out.mT

    verdict = invariant(kernel, (X[None], CU), batch=1)
    assert "x (axis 1)" in verdict.reason
    assert not [it for it in verdict.not_judged if "out" in it], "sums of a head have tokens last"


def test_offsets_that_may_be_of_several_tensors_are_an_error() -> None:
    other = torch.tensor([0, 1, 2, 3, 28])
    with pytest.raises(UsageError, match="a, b are offsets of sequences; b has others than"):
        invariant(lambda x, a, b: x, (X, CU, other))


@pytest.mark.parametrize(
    "given", [CU[1:], CU - 1, CU[:-1], CU.flip(0), CU.float(), torch.arange(28), CU[None]]
)
def test_what_are_no_offsets_does_not_make_rows_sequences(given: Tensor) -> None:
    assert rows_of({"x": X, "given": given}, None).sequences is None


def test_without_sequences_the_relation_is_named_where_it_is_asked_for_alone() -> None:
    with pytest.raises(WrongError, match="ragged: no operand has offsets of sequences"):
        invariant(lambda x: x * 2, X, "ragged")
    assert not [it for it in invariant(lambda x: x * 2, X).not_judged if "ragged" in it]


@pytest.mark.usefixtures("harness")
def test_a_sealed_kernel_is_tried_too(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "def right(x, cu):\n"
        "    return torch.cat([it * 2 for it in x.split(cu.diff().tolist())])\n"
        "def by_count(x, cu):\n"
        "    return right(x, cu) * (1 if len(cu) > 3 else 1 + 2**-20)\n"
    )
    (tmp_path / "kernels.py").write_text(text)
    options: dict[str, Any] = {
        "sealed": True, "explain": False, "relations": ["batch", "ragged"],
    }  # fmt: skip
    like = lambda x, cu: x * 2  # noqa: E731
    verdict = check(f"{tmp_path}/kernels.py:right", like, (X, CU), **options)
    assert "ragged 6" in verdict.reason
    with pytest.raises(WrongError, match=r"batch: out .* with row 0 of 4 alone"):
        check(f"{tmp_path}/kernels.py:by_count", like, (X, CU), **options)
