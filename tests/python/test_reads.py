"""What a run reads of dtypes is the same in its float64 run: eps of finfo, branches, casts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checked import normal, wrong
from torch.nn import functional

from python_inspector import check
from python_inspector.trace.given import Given, Replay
from python_inspector.trace.replay import aside, run_following, run_watched

torch.set_num_threads(1)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
UNIT = torch.finfo(torch.float32).eps


def lifted(function: Any, *args: Any) -> torch.Tensor:
    """The float64 run of a call, as check() makes it."""
    given = Given()
    with aside():
        run_watched(given)(function, args, {})
        result: torch.Tensor = run_following(Replay(given))(function, args, {}).result
    return result


def norm(x: torch.Tensor, eps: float, gain: float = 1.0) -> torch.Tensor:
    wide = x.float()
    return (gain * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_norm_without_eps_takes_that_of_its_float32_sums(
    dtype: torch.dtype, weighted: bool
) -> None:
    like = torch.nn.RMSNorm(64, elementwise_affine=weighted).to(dtype)
    x = 1e-4 * normal(4, 9, 64).to(dtype)
    check(lambda x: norm(x, UNIT), like=like, inputs=x)
    for eps, gain in ((1e-6, 1.0), (0.0, 1.0), (UNIT, 2.0)):
        wrong(lambda x, eps=eps, gain=gain: norm(x, eps, gain), like, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_finfo_is_that_of_the_run(dtype: torch.dtype) -> None:
    x = normal(4, 8, dtype=dtype)
    found = lifted(lambda x: (x.tanh() * 0 + 1) * torch.finfo((x * 2).dtype).eps, x)
    assert found.dtype == torch.float64
    assert bool((found == torch.finfo(dtype).eps).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_that_is_an_argument_is_the_run_s(dtype: torch.dtype) -> None:
    x = normal(4, 8, dtype=dtype)
    found = lifted(lambda x, dtype: x.to(dtype) * 0 + torch.finfo(dtype).max, x, dtype)
    assert bool((found == torch.finfo(dtype).max).all())


def test_branches_are_the_run_s() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        if y.dtype == torch.float16:
            y = y.clamp(max=1)
        if torch.result_type(y, 1.0) == torch.bfloat16:
            y = y + 1
        return y

    for dtype in DTYPES:
        x = normal(4, 8, dtype=dtype)
        assert torch.allclose(lifted(like, x).float(), like(x).float(), rtol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_is_rounded_as_the_code_says(dtype: torch.dtype) -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh() * 0 + 1
        return y * torch.tensor(0.1).to(y.dtype)

    def written(x: torch.Tensor) -> torch.Tensor:
        total = torch.tensor([0.1, 0.1])
        total[0] = x.sum()
        return total.to(x.dtype)

    x = normal(2, 8, dtype=dtype)
    assert bool((lifted(like, x) == torch.tensor(0.1).to(dtype).double()).all())
    assert float(lifted(written, x)[0]) == float(x.double().sum())


def test_a_state_that_is_copied_late_is_not_counted() -> None:
    """What the reruns themselves read of dtypes is no read of the code."""
    from transformers import DynamicCache

    def like(x: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        first = x.dtype == torch.bfloat16
        keys, _ = cache.update(x, x * 2, 0)
        y = torch.ops.aten.mul.Tensor(keys * 2, keys)
        return y * 7 if first and (y + 1).dtype == torch.bfloat16 else y

    x, cache = normal(1, 2, 3, 4, dtype=torch.bfloat16), DynamicCache()
    cache.update(x, x, 0)
    found = lifted(like, x, cache)
    assert torch.allclose(found[:, :, :3], 14 * x.double().square())


def test_a_run_that_takes_another_way_reads_its_own() -> None:
    given, x = Given(), normal(2, 8)
    with aside():
        run_watched(given)(lambda x: x * float(x.dtype == torch.float32), (x,), {})
        replay = Replay(given)
        assert replay.dtype(torch.float64, x.double()) == torch.float32
        assert replay.dtype(torch.float64, x.double()) == torch.float64  # none is left
        assert Replay(given).dtype(torch.float64, x[0].double()) == torch.float64  # another's


@pytest.mark.usefixtures("harness")
def test_functional_norms_of_rounded_values(harness: Any) -> None:
    """Inside of the code, where the norm's operand was computed."""

    def like(x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x * 1e-4, (64,))

    x = normal(4, 64)
    check(lambda x: norm(x * 1e-4, UNIT), like=like, inputs=x)
    wrong(lambda x: norm(x * 1e-4, 0.0), like, x)
