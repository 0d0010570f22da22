"""Products that accumulate as tensor cores do: what they lose, on a host and on an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from python_inspector.trace import simulation, spread, truncation
from python_inspector.trace.spread import simulate


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def outputs(result: Any, twin: Any) -> Any:
    return {"out": (result, ("token", "channel"))}


def truncating_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in blocks of 16 exact products, cut off toward zero at each addition."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for start in range(0, a.shape[1], 16):
        total += a[:, start : start + 16].double() @ b[start : start + 16].double()
        size = 2.0 ** (torch.frexp(total).exponent.double() - 24)
        total = torch.where(total == 0, total, (total / size).trunc() * size)
    return total


def test_truncating_products_lose_what_cutting_off_loses() -> None:
    a, b = randn(40, 2048), randn(2048, 40, seed=1)
    lost = a.double() @ b.double() - truncating_sum(a, b)
    found, variance = truncation.loss(a, b)
    assert float(lost.abs().median()) > 100 * 2.0**-24
    assert torch.allclose(found, lost, rtol=0, atol=1e-12)
    cuts = 2048 / 16
    assert 0.1 < float(variance.mean() / (cuts / 12 * 2.0**-36)) < 10  # sums of about 32


def test_long_sums_of_narrow_outputs_are_also_truncated() -> None:
    for terms, dtype, expected in (
        (1024, torch.bfloat16, True),
        (1023, torch.bfloat16, False),
        (1024, torch.float32, False),
    ):
        x, w = randn(6, terms).to(dtype), randn(terms, 6, seed=1).to(dtype)
        found = simulate(lambda run, x=x, w=w: run(torch.matmul, (x, w), {}), outputs, 3, "x")
        assert found is not None
        assert bool(found.truncated) == expected


@pytest.mark.parametrize("terms", [2304, 9216])
@pytest.mark.parametrize("offset", [0.0, 0.1])
def test_an_accelerator_loses_as_much_by_truncation(
    offset: float, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cuts exact sums: other last places, as many bits."""
    a = randn(24, terms)
    b = (randn(terms, 200, seed=1) + offset).bfloat16()
    lost, variance = truncation.loss(a, b)
    monkeypatch.setattr(truncation, "is_host", lambda device: False)
    for room in (1 << 12, 1 << 27):
        monkeypatch.setattr(truncation, "_ROOM_ON_DEVICE", room)
        other, its_variance = truncation.loss(a, b)
        sign = (a.double() @ b.double()).sign()
        assert float((other * sign).mean() / (lost * sign).mean()) == pytest.approx(1, rel=0.02)
        assert float(other.norm() / lost.norm()) == pytest.approx(1, rel=0.02)
        assert float(its_variance.mean() / variance.mean()) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("columns", [1, 7, 100, 399])
def test_a_wide_weight_loses_in_parts_what_it_does_as_a_whole(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head's float64 copies would take as much memory as all else: whatever the device holds."""
    monkeypatch.setattr(truncation, "is_host", lambda device: False)
    a, b = randn(3, 2304), randn(2304, 400, seed=1).bfloat16()
    whole, its_variance = truncation.loss(a, b)
    monkeypatch.setattr(truncation, "_WIDE_ON_DEVICE", columns * 2304 + 1)
    widths: list[int] = []
    some_cuts = truncation._some_cuts

    def watched(*operands: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        widths.append(operands[1].shape[-1])
        return some_cuts(*operands)

    monkeypatch.setattr(truncation, "_some_cuts", watched)
    parts, their_variance = truncation.loss(a, b)
    assert max(widths) == columns and sum(widths) == 400
    assert float((parts - whole).norm() / whole.norm()) < 0.01  # sums in another order
    assert torch.allclose(their_variance, its_variance)


@pytest.mark.parametrize("terms", [1, 16, 24, 64, 128])
def test_an_accelerator_cuts_short_sums_as_the_host(
    terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of attention over a few keys, next to a projection's long ones."""
    a, b = randn(5, terms), randn(terms, 7, seed=1)
    lost, variance = truncation.loss(a, b)
    monkeypatch.setattr(truncation, "is_host", lambda device: False)
    other, its_variance = truncation.loss(a, b)
    assert torch.equal(other, lost) and torch.equal(its_variance, variance)


@pytest.mark.parametrize(("room", "made"), [(1 << 20, 1), (0, 2)])
def test_losses_are_made_once_for_kernels_that_have_no_room_beside_others(
    room: int, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(a.shape)
        return original(a, b)

    x, w = randn(6, 1024), randn(1024, 6, seed=1)
    found, original = [], truncation.loss
    monkeypatch.setattr(truncation, "loss", loss)
    monkeypatch.setattr(truncation, "_LOSSES", room)
    for most in (1 << 20, 4 * 36):  # all six at once, three at once
        calls: list[torch.Size] = []
        monkeypatch.setattr(simulation, "_limit", lambda device, most=most: most)
        spread._truncate.clear()
        result = simulate(lambda run: run(torch.matmul, (x, w), {}), outputs, 6, "x")
        assert result is not None
        found.append(result)
    assert len(calls) == made
    assert torch.equal(found[0].truncated["out"], found[1].truncated["out"])
    assert torch.equal(found[0].outputs["out"], found[1].outputs["out"])


def test_kernels_that_round_and_that_truncate_have_the_same_bits_side_by_side_as_apart() -> None:
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.matmul(x, w), -1) + torch.matmul(x, w).exp()

    def again(run: Any) -> Any:
        runs.append(run)
        return run(block, (x, w), {})

    runs: list[Any] = []
    x = randn(60, 1024).abs()
    w = randn(1024, 60, seed=1).abs() * 0.001
    spread._truncate.discard("layers.#.block##")
    apart, beside = (simulate(again, outputs, 3, "layers.1.block#0") for _ in range(2))
    assert apart is not None and beside is not None
    assert len(runs) == 2 + 1
    assert torch.equal(apart.outputs["out"], beside.outputs["out"])
    assert torch.equal(apart.truncated["out"], beside.truncated["out"])
    assert apart.operations == beside.operations
    assert not torch.equal(apart.truncated["out"], apart.outputs["out"])


class Weights:
    """An accelerator's, and how often what a product with them loses was worked out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self._loss = truncation.loss
        truncation.forget()
        monkeypatch.setattr(truncation, "is_host", lambda device: False)
        monkeypatch.setattr(truncation, "loss", self.loss)

    def loss(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.made += 1
        return self._loss(a, b)

    def found(self, a: torch.Tensor, b: torch.Tensor, *, kept: bool = False) -> torch.Tensor:
        """What a @ b loses."""
        with truncation.keeping(kept):
            return truncation._shared.loss(a, b)[0].double()


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[Weights]:
    yield Weights(monkeypatch)
    truncation.forget()


def test_parts_of_a_block_lose_what_it_loses(weights: Weights) -> None:
    a, w = randn(24, 1024), randn(60, 1024, seed=1)
    lost = weights.found(a, w.t(), kept=True)
    assert torch.allclose(lost, weights._loss(a, w.t())[0])
    rounded_otherwise = torch.where(randn(24, 1024, seed=2) > 1, a * (1 + 2.0**-7), a)
    assert torch.equal(weights.found(rounded_otherwise, w.t()), lost)
    assert weights.made == 1
    own, variance = weights._loss(rounded_otherwise, w.t())
    assert float(lost.norm() / own.norm()) == pytest.approx(1, rel=0.02)
    _, scale = truncation._shared.loss(rounded_otherwise, w.t())
    assert float((scale / variance.sqrt()).mean()) == pytest.approx(1, rel=0.01)


def test_other_inputs_or_weights_lose_something_else(weights: Weights) -> None:
    a, w = randn(24, 1024), randn(60, 1024, seed=1)
    first = weights.found(a, w.t(), kept=True)
    for x, b in (
        (randn(24, 1024, seed=3), w.t()),
        (a[:8], w.t()),
        (a, w.clone().t()),
        (a, w.t()[:, :30]),
        (torch.full_like(a, torch.nan), w.t()),
    ):
        before = weights.made
        weights.found(x, b, kept=True)
        assert weights.made == before + 1
    assert torch.equal(weights.found(a, w.t()), first)  # the first one stays
    w.mul_(2)  # in the same storage
    assert torch.allclose(weights.found(a, w.t()), weights._loss(a, w.t())[0])


def test_only_what_the_outermost_block_loses_is_kept(weights: Weights) -> None:
    """A part that was recorded before the run was killed must not be missed."""
    a, w = randn(24, 1024), randn(60, 1024, seed=1)
    for _ in range(2):
        weights.found(a, w.t())
    assert weights.made == 2 and not truncation._shared.known
    weights.found(a, w.t(), kept=True)
    truncation.forget()
    weights.found(a, w.t())
    assert weights.made == 4


def test_losses_that_are_kept_take_no_more_room_than_they_may(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncation, "_SHARED_ON_DEVICE", 3 * 24 * 60)
    a = randn(24, 1024)
    every = [randn(60, 1024, seed=seed) for seed in range(4)]
    for w in every:
        weights.found(a, w.t(), kept=True)
    for w in every:
        weights.found(a, w.t())
    assert weights.made == 4 + 1
