"""Tensors of an accelerator on the host: small ones in one copy, large ones in parts, each with its
own bits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from python_inspector.format import host_copy
from python_inspector.format.host_copy import SMALL, bytes_of, copy_through, near


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor counts as one of an accelerator."""
    monkeypatch.setattr(host_copy, "is_host", lambda device: False)


def every_kind() -> list[torch.Tensor | None]:
    """Items of all sizes, the smallest first, so that what follows them has to be aligned."""
    numbers = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    return [
        torch.tensor([[True], [False], [True]]),
        None,
        numbers.bfloat16(),
        torch.tensor(7, dtype=torch.uint8),
        numbers.double(),
        torch.empty(0, 4, dtype=torch.float64),
        numbers.mT,
        numbers.double()[:, 1:2],  # one axis, with a stride
        torch.arange(3),
        torch.tensor([float("nan"), float("-inf"), -0.0]),
        None,
        numbers.requires_grad_(),
        numbers.half()[:, ::2],
    ]


def bits(t: torch.Tensor) -> bytes:
    return bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def require_same(
    found: Sequence[torch.Tensor | None], given: Sequence[torch.Tensor | None]
) -> None:
    for mine, theirs in zip(found, given, strict=True):
        if theirs is None:
            assert mine is None
            continue
        assert mine is not None
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert bits(mine) == bits(theirs)


def are_these(found: Sequence[torch.Tensor | None], given: Sequence[torch.Tensor | None]) -> bool:
    return all(mine is theirs for mine, theirs in zip(found, given, strict=True))


@pytest.mark.usefixtures("elsewhere")
def test_small_tensors_come_in_one_copy() -> None:
    given = every_kind()
    found = near(given)
    require_same(found, given)
    copies = [t for t in found if t is not None]
    assert len({t.untyped_storage().data_ptr() for t in copies}) == 1
    assert not any(t is own for t in copies for own in given)


@pytest.mark.usefixtures("elsewhere")
def test_a_tensor_that_is_given_twice_comes_twice() -> None:
    t, other = torch.arange(5), torch.arange(3.0)
    require_same(near([t, other, None, t]), [t, other, None, t])


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("more", [0, 1])
def test_large_tensors_stay_where_they_are(more: int) -> None:
    """What counts is how large they are together."""
    half = torch.zeros(SMALL // 2, dtype=torch.uint8)
    given = [half, None, torch.zeros(SMALL // 2 + more, dtype=torch.uint8)]
    found = near(given)
    require_same(found, given)
    assert are_these(found, given) == bool(more)


def test_on_the_host_they_stay_themselves() -> None:
    given = every_kind()
    found = near(given)
    assert are_these(found, given)
    assert found is not given


@pytest.mark.parametrize("size", [1, 24, 7, 1 << 12])
def test_a_large_tensor_comes_in_parts(size: int) -> None:
    """Whatever the buffer's size has to do with that of an item."""
    buffer = torch.full((size,), 0xA5, dtype=torch.uint8)
    for t in every_kind():
        if t is None:
            continue
        source = t.detach().contiguous()
        to = torch.empty(source.shape, dtype=source.dtype)
        parts: list[int] = []
        copy_through(buffer, source, to, lambda parts=parts: parts.append(1))  # type: ignore[misc]
        require_same([to], [source])
        assert len(parts) == max(1, -(-source.numel() * source.element_size() // size))


def test_a_part_is_taken_when_it_has_arrived() -> None:
    """Until then the buffer holds something else."""
    source, to = torch.arange(100), torch.zeros(100, dtype=torch.int64)
    buffer = torch.zeros(64, dtype=torch.uint8)
    late: list[torch.Tensor] = []

    class Late(torch.Tensor):
        """A buffer that what is copied to comes to when it is waited for."""

        def copy_(self, part: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
            assert non_blocking
            late.append(part)
            return self

    slow = buffer.as_subclass(Late)

    def arrived() -> None:
        part = late.pop()
        buffer[: len(part)] = part

    copy_through(slow, source, to, arrived)
    assert torch.equal(to, source)


def test_nothing_with_a_stride_has_no_bytes() -> None:
    assert len(bytes_of(torch.arange(6).reshape(2, 3)[:0, 1])) == 0
