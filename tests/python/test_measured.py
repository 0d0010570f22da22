"""A verdict by figures alone: the words and the gates that the judge of files has.

What is on an accelerator is judged so; here the host takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checked import normal
from torch.nn import functional

from python_inspector import Verdict, WrongError, check
from python_inspector.recorder import measured
from python_inspector.recorder.one_call import OneCallRecording

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

Kernel = Callable[..., Any]


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * wide.to(x.dtype)


def other_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = (wide * wide).sum(-1, keepdim=True) / x.shape[-1]
    return weight * (wide / (mean + 1e-5).sqrt()).to(x.dtype)


def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.softmax(-1), x.tanh()


def mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return functional.silu(x @ up) @ down


def operands(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shapes = {
        "norm": ((24, 64), (64,)), "two": ((3, 16, 32),), "mlp": ((16, 32), (32, 48), (48, 32)),
    }  # fmt: skip
    return tuple(normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes[name]))


LIKE: dict[str, Kernel] = {"norm": norm, "two": two, "mlp": mlp}
KERNELS: list[tuple[str, Kernel]] = [
    ("norm", norm),
    ("norm", other_norm),
    ("norm", lambda x, w: other_norm(x, w) * 1.003),
    ("norm", lambda x, w: norm(x, w) * 1.5),
    ("norm", lambda x, w: norm(x, w).index_fill(0, torch.tensor([5]), 0)),
    ("norm", lambda x, w: norm(x, w).index_fill(1, torch.tensor([60, 61]), 9)),
    ("norm", lambda x, w: norm(x, w) * torch.nan),
    ("norm", lambda x, w: norm(x, w).index_fill(0, torch.tensor([3]), torch.inf)),
    ("norm", lambda x, w: x * w),
    ("two", two),
    ("two", lambda x: (x.softmax(-1), x.tanh() * 1.003)),
    ("two", lambda x: (x.softmax(-1), x.tanh().masked_fill(x > 2.5, torch.nan))),
    ("mlp", mlp),
    ("mlp", lambda x, up, down: mlp(x[..., :-1], up[:-1], down)),
]


def verdict_on(kernel: Kernel, like: Kernel, inputs: Any, **options: Any) -> Verdict:
    try:
        return check(kernel, like, inputs, **{"explain": False, **options})
    except WrongError as error:
        return error.verdict


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures decide whatever the size and the device; what they decided."""
    decided: list[Any] = []
    found = measured.pass_of

    def noted(*given: Any, **named: Any) -> Any:
        decided.append(found(*given, **named))
        return decided[-1]

    monkeypatch.setattr(measured, "LARGE", 0)
    monkeypatch.setattr(measured, "is_on_host", lambda t: False)
    monkeypatch.setattr(measured, "pass_of", noted)
    return decided


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("at", range(len(KERNELS)))
def test_the_same_verdicts_and_shares(at: int, dtype: torch.dtype, request: Any) -> None:
    name, kernel = KERNELS[at]
    inputs = operands(name, dtype)
    files = verdict_on(kernel, LIKE[name], inputs, explain=True)
    decided = request.getfixturevalue("everywhere")
    figures = verdict_on(kernel, LIKE[name], inputs, explain=True)
    assert str(figures) == str(files)
    assert figures.rounding == files.rounding
    assert figures.to_json() == files.to_json()
    for mine, theirs in zip(figures.figures["outputs"], files.figures["outputs"], strict=True):
        expected = {gate["name"]: gate for gate in theirs["gates"]}
        found = {gate["name"]: gate for gate in mine["gates"]}
        assert found.keys() in (
            expected.keys() - {"structure", "classes", "padding"}, {"classes"},
        )  # fmt: skip
        for name, gate in found.items():
            for field in ("statistic", "limit"):
                assert gate[field] == pytest.approx(expected[name][field], rel=1e-6)
    assert "judged where they are" in figures.figures["details"][0]
    assert decided


def test_what_is_special_is_left_to_files(everywhere: list[Any]) -> None:
    x = normal(8, 32)
    valid = torch.ones(8, dtype=torch.bool)
    valid[3] = False
    verdict_on(torch.tanh, torch.tanh, x, valid=valid)
    verdict_on(lambda x: x.argmax(-1), lambda x: x.argmax(-1), x)
    huge = x.clone()
    huge[0] = 1e30
    verdict_on(torch.square, torch.square, huge)  # an infinite row
    verdict_on(lambda x: x.tanh(), two, x)  # one of two
    assert verdict_on(torch.tanh, torch.tanh, torch.ones(8, 32)).status == "blind"
    verdict_on(lambda x: x * 1e-39, lambda x: x * 1e-39, x)  # denormal numbers
    assert len(everywhere) == 6 and decided_none(everywhere)
    verdict_on(torch.tanh, torch.tanh, x.half(), contract="fused")
    assert decided_none(everywhere)


def decided_none(everywhere: list[Any]) -> bool:
    return all(it is None for it in everywhere)


@pytest.mark.parametrize(
    ("least", "host", "explain", "figures"),
    [(1 << 20, False, True, True), (1 << 20, False, False, False), (1, True, False, False),
     (1 << 20, True, True, True), (1, False, False, True)],
)  # fmt: skip
def test_what_is_small_and_has_no_figures_yet_is_left_to_files(
    least: int, host: bool, explain: bool, figures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "LARGE", least)
    monkeypatch.setattr(measured, "is_on_host", lambda t: host)
    for kernel in (torch.tanh, torch.sin):
        verdict = verdict_on(kernel, torch.tanh, normal(4, 32), explain=explain)
        assert ("where they are" in verdict.figures["details"][0]) == figures


@pytest.mark.parametrize("kernel", [norm, lambda x, w: norm(x, w) * 1.5])
def test_figures_alone_write_no_files(
    kernel: Kernel, everywhere: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneCallRecording, "save", lambda *_: pytest.fail("it writes files"))
    verdict_on(kernel, norm, operands("norm", torch.bfloat16), explain=True)
