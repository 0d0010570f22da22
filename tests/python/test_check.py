"""check(): kernels against torch modules and functions, right ones and wrong ones."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_inspector import check, checking, draw
from python_inspector.drawing import KINDS
from python_inspector.errors import HarnessError, RecordError
from python_inspector.judge_library import JudgeLibrary, find_library
from python_inspector.verdict import Verdict, WrongError
from python_inspector.verification import find_harness

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

Kernel = Any


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


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


def wrong(function: Kernel, like: Kernel, inputs: Any, **options: Any) -> Verdict:
    with pytest.raises(WrongError) as raised:
        check(function, like=like, inputs=inputs, **options)
    assert str(raised.value) == str(raised.value.verdict)
    return raised.value.verdict


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
    assert "token 3..4" in verdict.reason
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


# What comes in and what comes back.


def test_numpy_functions_get_arrays() -> None:
    def kernel(x: np.ndarray) -> np.ndarray:
        assert isinstance(x, np.ndarray)
        return np.tanh(x)

    check(kernel, like=torch.tanh, inputs=normal(4, 16), arrays="numpy")
    x = normal(4, 64, dtype=torch.bfloat16)
    verdict = check(kernel, like=torch.tanh, inputs=x, arrays="numpy")
    assert "wider outputs were rounded to bf16" in verdict.figures["details"]


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


def test_from_dlpack_of_a_named_module_makes_the_arrays() -> None:
    check(lambda x: np.exp(np.asarray(x)), like=torch.exp, inputs=normal(3, 8), arrays="torch")
    given: list[Any] = []
    check(lambda x: given.append(x) or np.exp(x), torch.exp, normal(3, 8), arrays=np.from_dlpack)
    assert isinstance(given[0], np.ndarray)


def test_a_function_may_write_to_its_inputs() -> None:
    x = normal(4, 16)
    before = x.clone()
    check(lambda x: x.mul_(2), like=lambda x: x * 2, inputs=x)
    assert torch.equal(x, before)


def test_several_outputs_go_by_position_or_name() -> None:
    def like(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + y, x * y

    inputs = {"x": normal(4, 16), "y": normal(4, 16, seed=6)}
    assert check(lambda x, y: [y + x, y * x], like=like, inputs=inputs).passed
    assert check(lambda x, y: y + x, like=like, inputs=inputs).not_judged == ("out.1",)
    assert "out.1: " in wrong(lambda x, y: (y + x, y * x * 1.01), like, inputs).reason
    with pytest.raises(AssertionError, match="3 results, `like` 2: out.0, out.1"):
        check(lambda x, y: (x, x, x), like=like, inputs=inputs)
    named = {"sum": torch.sum, "most": torch.amax}
    check(
        lambda x: {"most": x.amax(-1), "sum": x.sum(-1)},
        like=lambda x: {name: function(x, -1) for name, function in named.items()},
        inputs=normal(8, 16),
    )


def test_whole_numbers_must_be_equal() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return x.topk(2, -1).indices

    x = normal(5, 16)
    check(lambda x: x.argsort(-1, descending=True)[:, :2], like=like, inputs=x)
    verdict = wrong(lambda x: x.topk(2, -1).indices.flip(-1), like, x)
    assert "10 of 10 elements differ from the exact result" in verdict.reason


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


def test_a_module_is_called_in_eval_mode_and_left_as_it_was() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5))
    assert check(module[0], like=module, inputs=normal(4, 16)).passed
    assert module.training and module[1].training


def test_what_cannot_be_lifted_is_no_pass() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.tanh(x.numpy()))

    verdict = wrong(torch.tanh, like, normal(4, 16))
    assert verdict.status == "unsupported"
    assert "has no oracle" in verdict.reason


def test_what_returns_no_tensor_is_refused() -> None:
    with pytest.raises(RecordError, match="returned float without a tensor"):
        check(torch.tanh, like=lambda x: 1.0, inputs=normal(2, 2))


# Drawn inputs.


def test_every_seed_is_a_case_of_the_next_kind() -> None:
    drawn = draw((4, 32), seeds=10)
    verdict = check(lambda x: x.double().softmax(-1), lambda x: x.softmax(-1), inputs=drawn)
    kinds = [case.checkpoint.partition(":")[2].partition("#")[0] for case in verdict.cases]
    assert kinds == [*KINDS, "normal", "outliers"]
    assert verdict.reason == "10 of 10 cases pass"


def test_a_case_that_fails_is_told_by_its_kind() -> None:
    def overflowing(x: torch.Tensor) -> torch.Tensor:
        return x.exp() / x.exp().sum(-1, keepdim=True)

    drawn = draw((4, 32), kinds=["normal", "outliers"], seeds=2)
    verdict = wrong(overflowing, lambda x: x.softmax(-1), drawn)
    assert verdict.reason.startswith("1 of 2 cases pass\n  lambda:outliers#0 (module): fail")


def test_draws_of_one_call_differ_and_repeat() -> None:
    drawn = draw((3, 5), torch.bfloat16)
    assert torch.equal(drawn.tensor(4), drawn.tensor(4))
    assert not torch.equal(drawn.tensor(0), drawn.tensor(0, salt=1))
    ids = draw((3, 5), torch.int64, high=7).tensor(1)
    assert int(ids.min()) >= 0 and int(ids.max()) < 7
    assert draw((2, 2), torch.bool).tensor(0).dtype == torch.bool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_drawn_values_are_what_their_kind_says(dtype: torch.dtype) -> None:
    by_kind = {k: draw((4, 48), dtype, kinds=[k]).tensor(0) for k in KINDS}
    assert all(bool(x.isfinite().all()) for x in by_kind.values())
    smallest = torch.finfo(dtype).smallest_normal
    assert bool((by_kind["denormals"].abs() < smallest).any())
    assert bool((by_kind["negative"] <= 0).all())
    assert float(by_kind["outliers"].abs().max()) > 50
    assert float(by_kind["huge"].abs().max()) > 500
    assert int((by_kind["sparse"] == 0).sum()) >= 160
    assert len(by_kind["ties"].unique()) < 40


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kinds": ["odd"]}, "unknown kind 'odd'; known are normal"),
        ({"seeds": 0}, "0 seeds"),
        ({"shape": (0, 3)}, "is empty"),
    ],
)
def test_a_draw_that_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draw(**{"shape": (2, 2), **options})


# The judge without a process.


@pytest.fixture
def library(harness: Path) -> JudgeLibrary:
    path = find_library(harness)
    if path is None:
        pytest.skip("libplumbline_judge.so is not built")
    return JudgeLibrary(path)


def test_library_and_binary_say_the_same(
    library: JudgeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = torch.nn.Linear(32, 24)
    calls: list[tuple[Any, Any]] = [
        (lambda x: linear(x), linear),
        (lambda x: linear(x) * 1.001, linear),
    ]

    def verdicts() -> list[Any]:
        out = []
        for function, like in calls:
            try:
                verdict = check(function, like=like, inputs=normal(4, 32))
            except WrongError as error:
                verdict = error.verdict
            out.append({k: v for k, v in verdict.figures.items() if k not in ("again", "fixture")})
        return out

    with_library = verdicts()
    monkeypatch.setattr(checking, "find_library", lambda binary: None)
    assert verdicts() == with_library


def test_errors_of_the_library_are_text(library: JudgeLibrary, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="ended with 3: .*recording.json"):
        library.judge(tmp_path, tmp_path / "none")
    with pytest.raises(HarnessError, match='ended with 2: .*contract is "odd"'):
        library.judge(tmp_path, tmp_path, contract="odd")
    (tmp_path / "recording.json").write_text("{")
    with pytest.raises(HarnessError, match="ended with 3"):
        library.judge(tmp_path, tmp_path)


def test_native_blocks_are_left_to_the_binary(library: JudgeLibrary, tmp_path: Path) -> None:
    from python_inspector.format.operands import output_of, save

    recording = Path(__file__).parents[2] / "fixtures" / "llama-a1" / "whole-f32"
    save({"model.norm#0/out": output_of(normal(2, 15, 32))}, tmp_path / "y")
    [item] = library.judge(recording, tmp_path / "y")
    assert item["status"] == "unsupported"
    assert "judged by `harness judge`" in item["reason"]


def test_a_library_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.so").write_text("no library")
    with pytest.raises(HarnessError, match=r"x\.so cannot be used"):
        JudgeLibrary(tmp_path / "x.so")
    monkeypatch.setenv("PLUMB_JUDGE_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(HarnessError, match=r"none\.so \(PLUMB_JUDGE_LIBRARY\) is no file"):
        find_library(find_harness())


def test_a_small_case_takes_less_than_a_third_of_a_second(library: JudgeLibrary) -> None:
    norm, x = norm_of(64), normal(4, 9, 64)
    check(norm, like=norm, inputs=x)  # imports, and shapes of operations that are looked up once
    took = []
    for _ in range(5):
        start = time.process_time()
        check(norm, like=norm, inputs=x)
        took.append(time.process_time() - start)
    assert min(took) < 0.3


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
        "check() needs torch and transformers: pip install 'plumbline[record]'",
        "draw() needs torch: pip install 'plumbline[record]'",
        "verdicts_frame() needs pandas: pip install 'plumbline[frame]'",
    ]
