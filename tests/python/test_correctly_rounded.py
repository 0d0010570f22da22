"""What torch rounds by itself has the bits of float64 arithmetic that is rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from python_inspector.trace.arithmetic import name_of
from python_inspector.trace.correctly_rounded import is_correctly_rounded
from python_inspector.trace.stored import stored_dtypes

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def numbers(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Of all sizes; some are zero, infinite or no number, many are near each other."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-12, 12, (200, 1), generator=generator)
    x = torch.randn(200, 50, generator=generator, dtype=torch.float64) * 2.0**exponents
    x[0, :4] = torch.tensor([0.0, -0.0, torch.inf, torch.nan], dtype=torch.float64)
    return x.to(dtype)


def calls(a: torch.Tensor, b: torch.Tensor) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    tensors = [(f, (a, b)) for f in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)]
    by_number = [aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor, aten.rsub.Scalar]
    with_numbers = [(f, (a, number)) for f in by_number for number in (0.5, 30.0, 3, 0.1, 1e-5)]
    return [
        *tensors,
        *with_numbers,
        (aten.div.Tensor, (a, b)),
        (aten.div.Tensor, (a, 3.0)),
        (aten.maximum.default, (a, b)),
        (aten.clamp.default, (a, -0.5, 1)),
        (aten.clamp.default, (a, -0.1, None)),
        (aten.amax.default, (a, [-1], True)),
        (aten.neg.default, (a,)),
        (aten.abs.default, (a,)),
        (aten.relu.default, (a,)),
    ]


def test_the_result_is_that_of_float64_rounded_once() -> None:
    seen = set()
    for first in DTYPES:
        for second in DTYPES:
            for func, args in calls(numbers(first, 1), numbers(second, 2)):
                name = name_of(func)
                (stores,) = stored_dtypes(func, args, {})
                if not is_correctly_rounded(name, args, {}, stores):
                    continue
                wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
                wide = [_as_float32(a) if isinstance(a, float) else a for a in wide]
                seen.add((name, first, second))
                found = func(*args)
                assert torch.equal(found.nan_to_num(7.0), func(*wide).to(stores).nan_to_num(7.0))
                assert bool((found.isnan() == func(*wide).isnan()).all())
    same = {(name, d, d) for name in ("add", "sub", "mul", "maximum") for d in DTYPES}
    assert same | {("div", torch.float32, torch.bfloat16)} <= seen


def _as_float32(number: float) -> float:
    return torch.tensor(number, dtype=torch.float32).item()


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (aten.add.Tensor, ("bf16", "bf16"), {"alpha": 3}),
        (aten.rsub.Scalar, ("bf16", 1.0, 3), {}),
        (aten.mul.Tensor, ("bf16", 0.1), {}),
        (aten.div.Tensor, ("bf16", 3.0), {}),
        (aten.div.Tensor, ("f16", "f16"), {}),
        (aten.div.Tensor_mode, ("f32", "f32"), {"rounding_mode": "floor"}),
        (aten.add.Tensor, ("f32", "i64"), {}),
        (aten.mul.Tensor, ("c64", "c64"), {}),
        (aten.exp.default, ("f32",), {}),
        (aten.sum.default, ("f32",), {}),
    ],
)
def test_what_is_rounded_more_than_once_or_by_a_library_is_left_to_float64(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    dtypes = {
        "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32,
        "i64": torch.int64, "c64": torch.complex64,
    }  # fmt: skip
    given = [torch.ones(3, dtype=dtypes[a]) if isinstance(a, str) else a for a in args]
    (stores,) = stored_dtypes(func, given, kwargs)
    assert not is_correctly_rounded(name_of(func), given, kwargs, stores)
