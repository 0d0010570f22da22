"""Forms of torch's operations that PyTorch's own samples have: operands of whole numbers, arguments
by name, sums that start at a matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checked import normal, wrong

from python_inspector import check
from python_inspector.taps.generic import storable
from python_inspector.trace.replay import run_rounded
from python_inspector.trace.simulation import Normals, Simulation

pytestmark = pytest.mark.usefixtures("harness")


def integers(dtype: torch.dtype = torch.int64) -> torch.Tensor:
    made = torch.randint(1, 9, (16, 24), generator=torch.Generator().manual_seed(3))
    return (made % 2 if dtype == torch.bool else made).to(dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("function", [torch.exp, torch.sqrt, torch.sigmoid, torch.erf])
def test_functions_of_whole_numbers(function: Any, dtype: torch.dtype) -> None:
    """Their results are as good as those of float32."""
    x = integers(dtype)
    assert check(lambda x: function(x.double()).float(), function, x, explain=False).passed
    wrong(lambda x: function(x) * 1.001, function, x, explain=False)


def test_a_sum_of_exponentials_of_whole_numbers() -> None:
    def like(x: Any) -> Any:
        return x.logsumexp(-1)

    assert check(lambda x: x.float().exp().sum(-1).log(), like, integers(), explain=False).passed
    wrong(lambda x: like(x) * 1.001, like, integers(), explain=False)


def test_quotients_of_whole_numbers() -> None:
    x = integers()[:8], integers()[8:]
    assert check(lambda a, b: a.float() * (1 / b), torch.div, x, explain=False).passed
    wrong(lambda a, b: (a / b).bfloat16().float(), torch.div, x, explain=False)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_stable_order_along_an_axis_that_is_named(dim: int) -> None:
    def like(x: Any) -> Any:
        return torch.sort(x, dim=dim, descending=True, stable=True)

    def kernel(x: Any) -> Any:
        at = torch.argsort(x, dim=dim, descending=True, stable=True)
        return x.gather(dim, at), at

    x = normal(16, 8, 24)
    assert check(kernel, like, x, explain=False).passed
    wrong(lambda x: torch.sort(x, dim=dim, stable=True), like, x, explain=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_product_added_to_a_matrix(dtype: torch.dtype) -> None:
    def like(c: Any, a: Any, b: Any) -> Any:
        return torch.addmm(c, a, b, alpha=0.5)

    x = tuple(normal(*shape, dtype=dtype) for shape in ((16, 32), (16, 64), (64, 32)))
    kernel = lambda c, a, b: (c.double() + a.double() @ b.double() / 2).to(dtype)  # noqa: E731
    assert check(kernel, like, x, explain=False).passed
    wrong(lambda c, a, b: like(0.97 * c, a, b), like, x, explain=False)


def test_a_transform_that_ends_as_a_conjugate() -> None:
    """Its simulated kernels differ, too."""
    simulation = Simulation(4, Normals("x"))
    with torch.no_grad():
        rerun = run_rounded(simulation)(torch.fft.ifft, (normal(5, 8),), {})
    made, _ = storable(rerun.result)
    stack = simulation.stacks.of(made)
    assert stack is not None and bool((stack[1:] != stack[0]).any())


def test_each_split_has_as_many_parts_as_it_says() -> None:
    for size in (16, 4, 8):
        like = lambda x, size=size: [t.exp() for t in x.exp().unsafe_split(size)]  # noqa: E731
        assert len(check(like, like, normal(32, 8), explain=False).figures["outputs"]) == 32 // size


def test_sums_beyond_2_53_are_no_counts() -> None:
    """Every number is whole there, and rounded all the same."""

    def like(a: Any, b: Any) -> Any:
        return torch.nn.functional.silu(a @ b)

    def reversed_sums(a: Any, b: Any) -> Any:
        return torch.nn.functional.silu(a.flip(1) @ b.flip(0))

    a, b = normal(64, 129) * 4e17, normal(129, 64, seed=1) * 4e17
    assert check(reversed_sums, like, (a, b)).passed
    counts = torch.arange(64.0).reshape(8, 8)
    assert wrong(lambda x: x.sum(0) * (1 + 1e-6), lambda x: x.sum(0), counts).status == "fail"


@pytest.mark.host  # a GPU's kernel returns some
def test_statistics_that_are_given_are_returned_by_none() -> None:
    """Which the rounded model has: the verdict says so, and nothing raises."""

    def like(x: Any, mean: Any, variance: Any) -> Any:
        return torch.native_batch_norm(x, None, None, mean, variance, False, 0.1, 1e-5)

    x = normal(4, 8, 16), normal(8), normal(8).abs() + 1
    assert wrong(like, like, x, explain=False).status == "unsupported"


def test_a_product_of_one_number() -> None:
    assert check(lambda x: x.clone(), lambda x: x.prod(0), normal(1).to(torch.bfloat16)[0]).passed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_truncated_quotient_is_rounded_first(dtype: torch.dtype) -> None:
    """17.9459 is 18 in bfloat16, and stays so."""

    def like(a: Any, b: Any) -> Any:
        return torch.div(a, b, rounding_mode="trunc")

    a, b = normal(64, 64, dtype=dtype) * 9, normal(64, 64, dtype=dtype, seed=1)
    a[0, 0], b[0, 0] = -3.890625, -0.216796875
    assert check(like, like, (a, b), explain=False).passed
    wrong(lambda a, b: like(a, b) + 1, like, (a, b), explain=False)
