"""What an accelerator multiplies in 16 bits: deviations of simulated kernels, sizes of terms."""

from __future__ import annotations

import pytest
import torch

from python_inspector.trace import narrow_product as module
from python_inspector.trace.narrow_product import is_narrow, narrow_product, product_of_stack
from python_inspector.trace.simulation import product


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stack_of(dtype: torch.dtype) -> torch.Tensor:
    """Samples whose elements differ from the first one's by a rounding here and there."""
    first = randn(30, 512).to(dtype)
    turned = randn(7, 30, 512, seed=1) > 1
    ulp = torch.finfo(dtype).eps
    samples = torch.where(turned, first.float() * (1 + ulp), first.float()).to(dtype)
    return torch.cat([first[None], samples])


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_host", lambda device: False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_first_sample_is_exact_and_the_others_to_three_digits_of_what_they_are_off(
    dtype: torch.dtype,
) -> None:
    stack, b = stack_of(dtype), randn(512, 40, seed=2).to(dtype)
    assert is_narrow(stack, b)
    exact = product(stack, b)
    found = product_of_stack(stack, b)
    assert found.dtype == torch.float64
    assert torch.equal(found[0], product(stack[0], b))
    off = exact[1:] - exact[0]
    assert float(off.norm()) > 0
    assert float((found - exact)[1:].norm() / off.norm()) < 1e-3


def test_one_sample_and_samples_without_rows() -> None:
    stack, b = stack_of(torch.bfloat16), randn(512, 40, seed=2).bfloat16()
    assert torch.equal(product_of_stack(stack[:1], b)[0], product(stack[0], b))
    assert product_of_stack(stack[:, :0], b).shape == (8, 0, 40)


def test_what_overflowed_in_all_samples_spoils_no_other_row() -> None:
    stack, b = stack_of(torch.float16), randn(512, 40, seed=2).half()
    stack[:, 3, 5] = torch.inf
    stack[2, 4, 6] = torch.nan
    exact, found = product(stack, b), product_of_stack(stack, b)
    assert torch.equal(found.isnan(), exact.isnan())
    assert torch.equal(found.isinf(), exact.isinf())


def test_magnitudes_have_six_digits() -> None:
    a, b = stack_of(torch.bfloat16)[0], randn(512, 40, seed=2).bfloat16()
    found = narrow_product(a.abs(), b.abs())
    assert torch.allclose(found.double(), product(a, b, magnitudes=True), rtol=1e-5, atol=0)


def test_tensor_cores_are_asked_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_float32(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        asked.append(a.shape)
        if errors:
            raise errors.pop()
        return torch.matmul(a.to(dtype), b.to(dtype))

    asked: list[torch.Size] = []
    errors: list[Exception] = []
    monkeypatch.setattr(module, "_TO_FLOAT32", to_float32)
    stack, b = stack_of(torch.bfloat16), randn(512, 40, seed=2).bfloat16()
    expected = torch.matmul(stack.float(), b.float())
    for error in ([], [NotImplementedError("no kernel")], [RuntimeError("not on this device")]):
        errors += error
        assert torch.allclose(narrow_product(stack, b), expected, rtol=1e-5, atol=1e-4)
    assert asked == [(8 * 30, 512)] * 3
    errors.append(torch.cuda.OutOfMemoryError("fewer kernels may still fit"))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        narrow_product(stack, b)


def test_what_is_wider_or_lies_on_a_host_is_not_multiplied_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = torch.ones(2, 2, dtype=torch.bfloat16)
    assert is_narrow(a, a)
    assert not is_narrow(a, a.float())
    assert not is_narrow(a.float(), a.float())
    assert not is_narrow(a, a.half())
    assert not is_narrow(a[None], a[None])
    monkeypatch.undo()
    assert not is_narrow(a, a)
