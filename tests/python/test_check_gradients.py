"""check(): `out=` and gradients inside of `like` and of kernels."""

from __future__ import annotations

import pytest
import torch
from checked import normal, wrong

from python_inspector import check

pytestmark = pytest.mark.usefixtures("harness")


def product_out(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.mul(x, 3, out=out)
    return out


def matmul_out(x: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x, x.T, out=x.new_empty(0))


def sum_out(x: torch.Tensor) -> torch.Tensor:
    return torch.sum(x * x, -1, out=x.new_empty(len(x)))


def most_out(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = x.new_empty(len(x)), x.new_empty(len(x), dtype=torch.long)
    torch.max(x, 1, out=out)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_may_be_written_to_what_is_named_for_them(dtype: torch.dtype) -> None:
    x = normal(8, 16, dtype=dtype)
    check(lambda x: x * 3, like=product_out, inputs=x)
    check(lambda x: (x.float() @ x.float().T).to(dtype), like=matmul_out, inputs=x)
    check(lambda x: (x * x).sum(-1), like=sum_out, inputs=x)
    check(lambda x: tuple(x.max(1)), like=most_out, inputs=x)
    wrong(lambda x: (x * x).sum(-1) * 1.02, sum_out, x)
    wrong(lambda x: (x.max(1)[0], x.min(1)[1]), most_out, x)


def derived(x: torch.Tensor) -> torch.Tensor:
    return 1 - x.tanh() ** 2


def backward(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    x.tanh().sum().backward()
    assert x.grad is not None
    return x.grad


def test_like_and_kernels_may_differentiate() -> None:
    x = normal(4, 16)
    check(derived, like=backward, inputs=x)
    check(backward, like=derived, inputs=x)
    wrong(lambda x: derived(x) * 1.001, backward, x)

    def of_the_given(x: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad(x.tanh().sum(), x)
        return grad

    given = normal(4, 16).requires_grad_()
    check(derived, like=of_the_given, inputs=given)
    check(of_the_given, like=derived, inputs=given)
    assert given.grad is None


def test_gradients_of_parameters_are_those_of_one_call() -> None:
    linear, x = torch.nn.Linear(16, 8, bias=False), normal(4, 16)
    linear.weight.grad = torch.ones(8, 16)

    def like(x: torch.Tensor) -> torch.Tensor:
        linear(x).tanh().sum().backward()
        assert linear.weight.grad is not None
        return linear.weight.grad

    def kernel(x: torch.Tensor) -> torch.Tensor:
        weight = linear.weight.detach()
        return derived(x @ weight.T).T @ x

    check(kernel, like=like, inputs=x)
    wrong(lambda x: kernel(x) * 1.001, like, x)
    assert torch.equal(linear.weight.grad, torch.ones(8, 16))


def test_gradients_are_off_where_nobody_asks_for_them() -> None:
    weight = torch.nn.Parameter(normal(16, 16))

    def kernel(x: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        out = x @ weight
        assert not out.requires_grad  # flex_attention on the CPU raises where it does
        return out

    check(kernel, like=kernel, inputs=normal(4, 16).requires_grad_())


def test_gradients_of_parameters_that_nobody_asks_for() -> None:
    weight = torch.nn.Parameter(normal(16, 16))

    def like(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (x @ weight).tanh().sum().backward()
        assert x.grad is not None
        return x.grad

    check(lambda x: derived(x @ weight) @ weight.T, like=like, inputs=normal(4, 16))
    assert weight.grad is None and weight.requires_grad
