"""A failure that a contract allows says by which one it passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plumbline import WrongError, check, prepare
from torch.nn.functional import linear

from python_inspector.api.prepared import Prepared


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.to(dtype)


def in_float32(x: Any, weight: Any) -> Any:
    return (x.float().softmax(-1) @ weight.float().mT).to(x.dtype)


def rounded_factor(x: Any, weight: Any) -> Any:
    return (x.float().softmax(-1).to(x.dtype).float() @ weight.float().mT).to(x.dtype)


def in_16_bits(x: Any, weight: Any) -> Any:
    out = torch.zeros(x.shape[0], weight.shape[0], dtype=x.dtype)
    for i in range(x.shape[1]):
        out = out + (x[:, i, None].float() * weight[:, i].float()).to(x.dtype)
    return out


def in_tf32(x: Any, weight: Any) -> Any:
    kept = [((it.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for it in (x, weight)]
    return linear(*kept)


def said(kernel: Any, like: Any, inputs: Any, **options: Any) -> str:
    with pytest.raises(WrongError) as raised:
        check(kernel, like=like, inputs=inputs, **options)
    return raised.value.verdict.diagnosis


def test_a_factor_in_16_bits() -> None:
    inputs = (normal(16, 256), normal(32, 256, seed=2))
    words = 'passes with contract="p-16": what the code keeps in float32'
    assert words in said(rounded_factor, in_float32, inputs)
    assert check(rounded_factor, in_float32, inputs, contract="p-16").passed


def test_sums_in_16_bits() -> None:
    inputs = (normal(16, 256), normal(32, 256, seed=2))
    assert 'passes with contract="sums-16"' in said(in_16_bits, linear, inputs)


@pytest.mark.parametrize("seed", [10, 22])
def test_products_in_tf32(seed: int) -> None:
    """Whose gain is a draw: 2 times its limit by one seed, 60 times by the other."""
    inputs = tuple(normal(n, 256, dtype=torch.float32, seed=seed + n // 32) for n in (16, 32))
    assert 'passes with contract="products-tf32"' in said(in_tf32, linear, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_wrong_by_every_contract(dtype: torch.dtype) -> None:
    def last_term_lost(x: Any, weight: Any) -> Any:
        return linear(x[:, :-1], weight[:, :-1])

    inputs = (normal(16, 64, dtype=dtype), normal(32, 64, dtype=dtype, seed=2))
    assert "contract" not in said(last_term_lost, linear, inputs)


def test_what_was_asked_for_stays() -> None:
    inputs = (normal(16, 256), normal(32, 256, seed=2))
    assert "contract" not in said(in_16_bits, linear, inputs, explain=False)
    assert "contract" not in said(in_16_bits, linear, inputs, contract="p-16")


def test_kernels_by_one_reference() -> None:
    judge = prepare(linear, (normal(16, 256), normal(32, 256, seed=2)))
    with pytest.raises(WrongError, match='contract="sums-16"'):
        judge(in_16_bits)
    assert judge(linear).passed


def test_what_is_narrow_in_its_output_alone() -> None:
    def like(x: Any) -> Any:
        return (x @ x.mT).to(torch.bfloat16)

    def kernel(x: Any) -> Any:
        return in_16_bits(x.to(torch.bfloat16), x.to(torch.bfloat16))

    assert "contract" not in said(kernel, like, (normal(16, 256, dtype=torch.float32),))


@pytest.mark.parametrize("where", ["_add", "_concluded"])
def test_a_failure_stays_one_where_the_trial_has_no_memory(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = prepare(linear, (normal(16, 256), normal(32, 256, seed=2)))
    original = getattr(Prepared, where)

    def without_memory(self: Prepared, *args: Any, **kwargs: Any) -> Any:
        if self is judge:
            return original(self, *args, **kwargs)
        if where == "_add":
            self._too_large = "too large to be judged"
            return None
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Prepared, where, without_memory)
    with pytest.raises(WrongError) as raised:
        judge(in_16_bits)
    assert raised.value.verdict.status == "fail"
    assert "contract=" not in raised.value.verdict.diagnosis
