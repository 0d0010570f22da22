"""check(sealed=True, backward=True): forward and backward run in the kernel's own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal, wrong

from python_inspector import UsageError, check, draw

pytestmark = [pytest.mark.usefixtures("harness"), pytest.mark.host]
FILE = Path(__file__).with_name("sealed_backward.py")
SEALED: dict[str, Any] = {"backward": True, "sealed": True, "explain": False}


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return norm(x, self.weight)


def named(name: str) -> str:
    return f"{FILE}:{name}"


def test_gradients_come_back_from_another_process() -> None:
    given = draw((4, 32), seeds=range(2)), normal(32, seed=1)
    verdict = check(named("Norm"), like=norm, inputs=given, **SEALED)
    assert verdict.passed and verdict.salt is not None
    assert len(verdict.cases) == 2
    failed = wrong(named("Wrong"), norm, given, **SEALED)
    assert failed.reason.startswith("0 of 2 cases pass") and "d_x: " in failed.reason


def test_a_backward_that_raises_is_an_error_by_name() -> None:
    given = normal(4, 32), normal(32, seed=1)
    failed = wrong(named("Raises"), norm, given, **SEALED)
    assert failed.status == "error"
    assert "the kernel's backward raised NotImplementedError: no gradient yet" in failed.reason
    assert wrong(named("Ends"), norm, given, **SEALED).status == "error"


def test_parameters_of_a_module_are_paired_by_name() -> None:
    x = normal(4, 32)
    assert check(named("module"), like=Norm(), inputs=x, **SEALED).passed
    assert wrong(named("wrong_module"), Norm(), x, **SEALED).reason.startswith("d_")
    failed = wrong(named("Norm"), Norm(), x, **SEALED)
    assert "has no parameter 'weight' of Norm: hand them over as weights=" in failed.reason
    given = {"weight": normal(32, seed=1)}
    assert check(named("Norm"), like=Norm(), inputs=x, weights=given, **SEALED).passed


def test_times_are_of_a_forward() -> None:
    from python_inspector import Sealed

    given = normal(4, 32), normal(32, seed=1)
    with pytest.raises(UsageError, match="backward and time"):
        check(named("Norm"), norm, given, backward=True, sealed=Sealed(time=True))


PROBLEM = """
import torch

class Model(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)

    def forward(self, x):
        return torch.nn.functional.silu(self.linear(x))

def get_inputs():
    return [torch.randn(6, 16)]

def get_init_inputs():
    return [16]
"""
CANDIDATE = """
import torch

class Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return g * s * (1 + FACTOR * x * (1 - s))

class ModelNew(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)

    def forward(self, x):
        return Silu.apply(self.linear(x))
"""


@pytest.mark.parametrize(("factor", "status"), [("1", "pass"), ("0.9", "fail")])
def test_a_benchmarks_candidate(tmp_path: Path, factor: str, status: str) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "candidate.py").write_text(CANDIDATE.replace("FACTOR", factor))
    words = ["kernelbench", str(tmp_path / "problem.py"), str(tmp_path / "candidate.py")]
    command = [sys.executable, "-m", "python_inspector.cli.plumbline", "judge", *words]
    done = subprocess.run(
        [*command, "--backward", "--explain", "0", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["status"] == status, done
    assert set(found["inputs"]) == {"own", "hard"}
