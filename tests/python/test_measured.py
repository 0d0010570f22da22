"""A pass by figures alone: the verdicts and the shares of limits that the judge of files has.

What lies on an accelerator is judged so; here the host takes its place.
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
    ("two", two),
    ("two", lambda x: (x.softmax(-1), x.tanh() * 1.003)),
    ("two", lambda x: (x.softmax(-1), x.tanh().masked_fill(x > 2.5, torch.nan))),
    ("mlp", mlp),
    ("mlp", lambda x, up, down: mlp(x[..., :-1], up[:-1], down)),
]


def verdict_on(kernel: Kernel, like: Kernel, inputs: Any, **options: Any) -> Verdict:
    try:
        return check(kernel, like, inputs, explain=False, **options)
    except WrongError as error:
        return error.verdict


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures decide whatever the size and the device; what they decided."""
    decided: list[Any] = []
    found = measured.pass_of

    def noted(*given: Any) -> Any:
        decided.append(found(*given))
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
    files = verdict_on(kernel, LIKE[name], inputs)
    decided = request.getfixturevalue("everywhere")
    figures = verdict_on(kernel, LIKE[name], inputs)
    assert figures.status == files.status
    assert (decided[0] is not None) == (files.status == "pass")
    if decided[0] is None:
        assert figures.reason == files.reason
        return
    mine, theirs = figures.worst_gate, files.worst_gate
    assert mine is not None
    assert theirs is not None
    assert mine["ratio"] == pytest.approx(theirs["ratio"], rel=1e-9)
    assert figures.rounding == files.rounding
    assert "judged where they are" in figures.figures["details"][0]
    assert figures.to_json()["worst"]["limit"] == 1


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
    assert decided_none(everywhere)
    verdict_on(torch.tanh, torch.tanh, x.half(), contract="fused")
    assert decided_none(everywhere)


def decided_none(everywhere: list[Any]) -> bool:
    return all(it is None for it in everywhere)


def test_small_and_host_tensors_are_left_to_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for least, host in ((1 << 20, False), (1, True)):
        monkeypatch.setattr(measured, "LARGE", least)
        monkeypatch.setattr(measured, "is_on_host", lambda t, host=host: host)
        verdict = verdict_on(torch.tanh, torch.tanh, normal(4, 32))
        assert "where they are" not in verdict.figures["details"][0]
