"""check(): kernels against torch modules and functions, right ones and wrong ones."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from checked import normal, wrong

from python_inspector import check
from python_inspector.errors import RecordError

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

Kernel = Any


def norm_of(width: int, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    norm = torch.nn.RMSNorm(width, eps=1e-5)
    norm.weight.data = 1 + 0.3 * normal(width, seed=9)
    return norm.to(dtype)


def eager_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Rounds where LLaMA does: before the weight, and after it."""
    wide = x.float()
    n = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * n.to(x.dtype)


def fused_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    wide = x.float()
    n = wide / (wide.square().sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt()
    return (weight.float() * n).to(x.dtype)


def test_a_right_function_passes_and_the_verdict_comes_back() -> None:
    norm = norm_of(64)
    verdict = check(lambda x: fused_norm(x, norm.weight), like=norm, inputs=(normal(3, 7, 64),))
    assert verdict.passed
    assert verdict.block == "module"
    assert verdict.checkpoint == "RMSNorm#0"


def test_a_wrong_function_is_told_where_and_by_how_much() -> None:
    linear = torch.nn.Linear(48, 40)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = linear(x).clone()
        out[:, 3:5, 16:24] *= 1.001  # one tile
        return out

    verdict = wrong(kernel, linear, normal(2, 9, 48))
    assert "allowed" in verdict.reason
    assert "axis 1: 3..4 of 9" in verdict.reason
    assert "16" in verdict.reason


@pytest.mark.parametrize("kernel", [eager_norm, fused_norm])
def test_16_bits_pass_by_the_roundings_that_they_follow(kernel: Kernel) -> None:
    weight = norm_of(64).weight.detach().bfloat16()
    x = normal(4, 9, 64, dtype=torch.bfloat16)
    verdict = check(kernel, like=eager_norm, inputs=(x,), weights={"weight": weight})
    where = "as the recorded run does" if kernel is eager_norm else "once, at the output"
    assert verdict.rounding == f"rounds {where}"


def test_a_demanded_rounding_is_demanded() -> None:
    weights = {"weight": norm_of(64).weight.detach().bfloat16()}
    x = normal(4, 9, 64, dtype=torch.bfloat16)
    check(fused_norm, like=eager_norm, inputs=(x,), weights=weights, contract="fused")
    verdict = wrong(fused_norm, eager_norm, (x,), weights=weights, contract="eager")
    assert "elements differ from the contract's rounded model" in verdict.reason


@pytest.mark.parametrize("kernel", [eager_norm, fused_norm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_epsilon_ten_times_as_large_fails(kernel: Kernel, dtype: torch.dtype) -> None:
    weights = {"weight": norm_of(64).weight.detach().to(dtype)}

    def off(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return kernel(x, weight, eps=1e-4)

    wrong(off, eager_norm, (0.05 * normal(4, 9, 64, dtype=dtype),), weights=weights)


def test_a_16_bit_failure_says_that_it_follows_nothing() -> None:
    weights = {"weight": norm_of(64).weight.detach().bfloat16()}

    def truncating(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        bits = (weight.float() * fused_norm(x.float(), torch.ones(64))).view(torch.int32)
        return (bits & ~0xFFFF).view(torch.float32).bfloat16()

    x = normal(4, 9, 64, dtype=torch.bfloat16)
    verdict = wrong(truncating, eager_norm, (x,), weights=weights)
    assert "follows no rounding points" in verdict.diagnosis


def three_roundings(x: torch.Tensor) -> torch.Tensor:
    return x.tanh() * 3 + x


def test_any_of_the_roundings_may_be_kept_in_float32() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return (x.tanh().float() * 3 + x.float()).to(x.dtype)

    x = normal(6, 8, 32, dtype=torch.bfloat16)
    verdict = check(kernel, like=three_roundings, inputs=x)
    assert verdict.rounding == "keeps mul #0 in float32"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_failure_is_named_after_the_bug_that_it_is(dtype: torch.dtype) -> None:
    verdict = wrong(lambda x: x.tanh() + x, three_roundings, normal(6, 8, 32, dtype=dtype))
    line = three_roundings.__code__.co_firstlineno + 1
    assert verdict.known_bug == f"mul #0 is skipped (test_check.py:{line})"
    assert "equals the block with a known bug, mul #0 is skipped" in verdict.reason
    assert wrong(lambda x: x * 7, three_roundings, normal(4, 32, dtype=dtype)).known_bug is None


def test_bugs_that_would_pass_are_told_on_demand() -> None:
    x = normal(4, 9, 64)
    assert check(eager_norm, eager_norm, (x, x[0, 0])).passing_bugs is None
    verdict = check(eager_norm, eager_norm, (x, x[0, 0]), bugs=True)
    assert verdict.passing_bugs is not None
    assert verdict.passing_bugs[0].startswith("add #0 other 1e-05 -> 1.01e-05 (test_check.py:")


# What comes in and what comes back.


def test_numpy_functions_get_arrays() -> None:
    def kernel(x: np.ndarray) -> np.ndarray:
        assert isinstance(x, np.ndarray)
        return np.tanh(x)

    check(kernel, like=torch.tanh, inputs=normal(4, 16), arrays="numpy")
    x = normal(4, 64, dtype=torch.bfloat16)
    verdict = check(kernel, like=torch.tanh, inputs=x, arrays="numpy")
    assert "wider outputs were rounded to bf16" in verdict.figures["details"]


@pytest.mark.host
@pytest.mark.parametrize("protocol", ["dlpack", "array"])
def test_anything_that_offers_an_array_is_taken(protocol: str) -> None:
    class Array:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

    def dlpack(self: Any, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    if protocol == "dlpack":
        Array.__dlpack__ = dlpack  # type: ignore[attr-defined]
        Array.__dlpack_device__ = lambda self: self.tensor.__dlpack_device__()  # type: ignore
    else:
        Array.__array__ = lambda self, dtype=None, copy=None: self.tensor.numpy()  # type: ignore

    def kernel(x: Any) -> Any:
        assert isinstance(x, Array)
        return Array(torch.tanh(x.tensor))

    check(kernel, like=torch.tanh, inputs=normal(4, 16), arrays=Array)


@pytest.mark.host
def test_from_dlpack_of_a_named_module_makes_the_arrays() -> None:
    check(lambda x: np.exp(np.asarray(x)), like=torch.exp, inputs=normal(3, 8), arrays="torch")
    given: list[Any] = []
    check(lambda x: given.append(x) or np.exp(x), torch.exp, normal(3, 8), arrays=np.from_dlpack)
    assert isinstance(given[0], np.ndarray)


def test_several_outputs_go_by_position() -> None:
    def like(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + y, x * y

    inputs = {"x": normal(4, 16), "y": normal(4, 16, seed=6)}
    assert check(lambda x, y: [y + x, y * x], like=like, inputs=inputs).passed
    assert check(lambda x, y: y + x, like=like, inputs=inputs).not_judged == ("out.1",)
    assert "out.1: " in wrong(lambda x, y: (y + x, y * x * 1.01), like, inputs).reason
    with pytest.raises(AssertionError, match=r"3 results, `like` 2: out\.0, out\.1"):
        check(lambda x, y: (x, x, x), like=like, inputs=inputs)


def test_whole_numbers_must_be_equal() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return x.topk(2, -1).indices

    x = normal(5, 16)
    check(lambda x: x.argsort(-1, descending=True)[:, :2], like=like, inputs=x)
    verdict = wrong(lambda x: x.topk(2, -1).indices.flip(-1), like, x)
    assert "10 of 10 elements differ from the expected result" in verdict.reason


def test_a_wrong_shape_and_dtype_are_told() -> None:
    assert "[16, 4], expected f32 [4, 16]" in wrong(lambda x: x.T, torch.tanh, normal(4, 16)).reason
    x = normal(4, 16)
    assert "bf16, the recording has f32" in wrong(lambda x: x.bfloat16(), torch.tanh, x).reason


def test_an_exception_of_the_function_is_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        check(lambda x: 1 / 0, like=torch.tanh, inputs=normal(2, 8))
    with pytest.raises(TypeError, match="output out is a str"):
        check(lambda x: "no", like=torch.tanh, inputs=normal(2, 8))


# Modules and weights.


def test_weights_take_the_place_of_a_modules_parameters() -> None:
    linear = torch.nn.Linear(16, 8, bias=False)
    before = linear.weight.clone()
    weights = {"weight": normal(8, 16)}
    check(lambda input, weight: input @ weight.T, linear, normal(4, 16), weights=weights)
    assert torch.equal(linear.weight, before)
    wrong(lambda input, weight: input @ before.T, linear, normal(4, 16), weights=weights)
    with pytest.raises(RecordError, match="'wight', which Linear lacks; it has weight"):
        check(torch.tanh, linear, normal(4, 16), weights={"wight": before})
    with pytest.raises(RecordError, match=r"weight is \(2, 2\), Linear has \(8, 16\)"):
        check(torch.tanh, linear, normal(4, 16), weights={"weight": normal(2, 2)})


def test_functions_may_use_modules_and_tensors_around_them() -> None:
    linear, scale = norm_of(16, torch.bfloat16), normal(16, dtype=torch.bfloat16)
    x = normal(8, 16, dtype=torch.bfloat16)
    verdict = check(lambda x: linear(x) * scale, like=lambda x: linear(x) * scale, inputs=x)
    assert verdict.passed


def test_what_draws_random_numbers_is_refused() -> None:
    with pytest.raises(RecordError, match="it draws random numbers"):
        check(torch.tanh, like=lambda x: torch.nn.functional.dropout(x, 0.5), inputs=normal(4, 64))
    with pytest.raises(RecordError, match=r"it draws random numbers \(aten::randn\)"):
        check(
            torch.tanh,
            like=lambda x: x.tanh() + 1e-4 * torch.randn(64, device=x.device),
            inputs=normal(4, 64),
        )


@pytest.mark.host
def test_what_cannot_be_lifted_is_no_pass() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.tanh(x.numpy()))

    verdict = wrong(torch.tanh, like, normal(4, 16))
    assert verdict.status == "unsupported"
    assert "what NumPy computes is taken as given" in verdict.reason


def test_what_returns_no_tensor_is_refused() -> None:
    with pytest.raises(RecordError, match="returned float without a tensor"):
        check(torch.tanh, like=lambda x: 1.0, inputs=normal(2, 2))


@pytest.mark.host
def test_without_torch_one_line_says_what_to_install() -> None:
    code = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "hidden = ('torch', 'transformers', 'pandas')\n"
        "importlib.util.find_spec = lambda name, *a: None if name in hidden else found(name, *a)\n"
        "for name in hidden: sys.modules[name] = None\n"
        "import python_inspector as p\n"
        "for call in (lambda: p.check(None, None, None), lambda: p.draw((1,)),\n"
        "             lambda: p.verdicts_frame([])):\n"
        "    try: call()\n"
        "    except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "check() needs torch: pip install 'plumbline-kernels[check]'",
        "draw() needs torch: pip install 'plumbline-kernels[check]'",
        "verdicts_frame() needs pandas: pip install 'plumbline-kernels[frame]'",
    ]
