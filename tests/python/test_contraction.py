"""Sums of large products of broadcast operands: the same results, without the products."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from python_inspector.trace import contraction
from python_inspector.trace.replay import run_lifted, run_rounded
from python_inspector.trace.simulation import Normals, Operands, Simulation
from python_inspector.trace.stacks import Stacks

SIZE = 32
A, B, X = (
    torch.randn(2, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) for seed in range(3)
)


class Sizes(TorchDispatchMode):
    """The most elements that any operation inside makes."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
            sizes = [t.untyped_storage().nbytes() // t.element_size() for t in made]
            self.most = max([self.most, *sizes])
        return result


def summed(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    g = (a[:, :, None] * b[:, None]).sum(dim=-1)
    return (g[..., None] * x[:, None]).sum(2)


def kept_sizes(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = a[:, :, None] * b[:, None]
    return product.sum(dim=(1, -1), keepdim=True), product.sum((0, 2)), product.sum(-2) + x


def used_again(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = a[:, :, None] * b[:, None]
    total = product.sum(-1)
    return total, product.amax(-1), product.sum(-1), product[0].sum() + x


def changed(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    product = a[:, :, None] * b[:, None]
    b.add_(x)
    return product.sum(-1)


def written(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    product = a[:, :, None] * b[:, None]
    product[..., 0].copy_(x)
    return product.sum(-1)


def returned(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a[:, :, None] * b[:, None], (x[:, :, None] * b[:, None])[1]


def as_float64(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (a[:, :, None] * b[:, None]).sum(-1, dtype=torch.float64) + x


def rounded(function: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, Simulation]:
    simulation = Simulation(8, Normals("test"))
    return run_rounded(simulation)(function, args, {}).result, simulation


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Products of this file's size wait."""
    monkeypatch.setattr(contraction, "LARGE", 4 * SIZE)
    return monkeypatch


ALL = [summed, kept_sizes, used_again, changed, written, returned, as_float64]


@pytest.mark.parametrize("function", ALL, ids=lambda it: it.__name__)
def test_the_oracle_is_the_same(function: Any, small: pytest.MonkeyPatch) -> None:
    waited = tree_leaves(run_lifted(function, (A, B, X), {}).result)
    small.setattr(contraction, "LARGE", 1 << 40)
    made = tree_leaves(run_lifted(function, (A, B, X), {}).result)
    for one, other in zip(waited, made, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("function", ALL, ids=lambda it: it.__name__)
def test_the_rounded_model_and_its_noise_are_the_same(
    function: Any, small: pytest.MonkeyPatch
) -> None:
    results, waited = rounded(function, A, B, X)
    small.setattr(contraction, "LARGE", 1 << 40)
    others, made = rounded(function, A, B, X)
    assert waited.operations == made.operations
    for one, other in zip(tree_leaves(results), tree_leaves(others), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(one, other, rtol=1e-6, atol=2e-5)
        spreads = []
        for t, simulation in ((one, waited), (other, made)):
            stack = simulation.stacks.of(t)
            off = None if stack is None else (stack[1:].double() - t.double()).norm() / t.norm()
            spreads.append(off)
        if spreads[0] is None or spreads[1] is None:
            assert spreads[0] is spreads[1]
        else:
            assert 0.8 < float(spreads[0] / spreads[1]) < 1.25


@pytest.mark.parametrize("run", [run_lifted, rounded], ids=["oracle", "rounded"])
def test_no_product_is_made_that_is_summed(run: Any, small: pytest.MonkeyPatch) -> None:
    def most() -> int:
        with Sizes() as sizes:
            run_lifted(summed, (A, B, X), {}) if run is run_lifted else rounded(summed, A, B, X)
        return sizes.most

    rows = 1 if run is run_lifted else 9
    assert most() <= rows * A.numel()
    small.setattr(contraction, "LARGE", 1 << 40)
    assert most() >= rows * A.numel() * SIZE


def test_rounding_points_in_16_bits_stay(small: pytest.MonkeyPatch) -> None:
    a, b = A.bfloat16(), B.bfloat16()
    m, _ = rounded(lambda a, b: (a[:, :, None] * b[:, None]).sum(-1), a, b)
    products = (a.double()[:, :, None] * b.double()[:, None]).bfloat16()
    assert torch.equal(m, products.double().sum(-1).bfloat16())


def test_counts_have_no_noise(small: pytest.MonkeyPatch) -> None:
    result, simulation = rounded(summed, A.round(), B.round(), X.round())
    assert simulation.stacks.of(result) is None


def test_operands_are_freed_with_the_operation() -> None:
    gc.disable()
    try:
        operands = Operands(Stacks(2), [[A.clone()]], {}, wide=False)
        operands.first_row()
        gone = weakref.ref(operands.args[0][0])
        del operands
        assert gone() is None
    finally:
        gc.enable()


def test_operands_that_do_not_fit_are_the_operations_own_error() -> None:
    a, b = torch.ones(contraction.LARGE, 2), torch.ones(contraction.LARGE, 3)
    with pytest.raises(RuntimeError, match="must match the size"):
        run_lifted(lambda x, y: x * y, (a, b), {}, [])
