"""Candidates in KernelBench's form: problems of ours, right and wrong kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from python_inspector.benchmarks import kernelbench
from python_inspector.cli import plumbline
from python_inspector.errors import UsageError

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

PROBLEM = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, width, groups):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.GroupNorm(groups, width)
    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))
def get_inputs():
    return [torch.rand(6, 16)]
def get_init_inputs():
    return [16, 4]
"""
CANDIDATE = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self, width, groups):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.GroupNorm(groups, width)
        self.groups = groups
    def forward(self, x):
        y = (x @ self.linear.weight.T + self.linear.bias).view(len(x), self.groups, -1)
        y = y - y.mean(-1, keepdim=True)
        y = y / (y.pow(2).mean(-1, keepdim=True) + {eps}).sqrt()
        y = y.view(len(x), -1) * self.norm.weight + self.norm.bias
        return {end}
"""
RELU = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.rand(6, 16)]
def get_init_inputs():
    return []
"""
IDENTITY = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x
"""


def place(folder: Path, problem: str, candidate: str) -> tuple[Path, Path]:
    files = folder / "problem.py", folder / "candidate.py"
    for file, text in zip(files, (problem, candidate), strict=True):
        file.write_text(text)
    return files


@pytest.mark.parametrize(
    ("eps", "end", "status"),
    [("1e-5", "torch.relu(y)", "pass"), ("1e-2", "torch.relu(y)", "fail"), ("1e-5", "y", "fail")],
)
def test_a_candidate(tmp_path: Path, eps: str, end: str, status: str) -> None:
    files = place(tmp_path, PROBLEM, CANDIDATE.format(eps=eps, end=end))
    said = kernelbench.judged(*files)
    assert set(said) == {"own", "hard"}
    assert kernelbench.status_of(said) == status, said


def test_inputs_that_are_never_negative_do_not_decide(tmp_path: Path) -> None:
    """As shipped, `return x` solves a ReLU."""
    files = place(tmp_path, RELU, IDENTITY)
    assert kernelbench.status_of(kernelbench.judged(*files, inputs=["own"])) == "pass"
    said = kernelbench.judged(*files)
    assert (said["own"].status, said["hard"].status) == ("pass", "fail")


def test_the_candidate_never_sees_the_problem(tmp_path: Path) -> None:
    thief = IDENTITY.replace("return x", "import sys; return sys.modules['named_problem'].answer")
    files = place(tmp_path, RELU, thief)
    said = kernelbench.judged(*files, inputs=["own"])
    assert said["own"].status == "error"
    assert "KeyError: 'named_problem'" in said["own"].reason


def test_files_of_another_form(tmp_path: Path) -> None:
    files = place(tmp_path, RELU.replace("get_inputs", "inputs"), IDENTITY)
    with pytest.raises(UsageError, match=r"problem\.py has no get_inputs"):
        kernelbench.judged(*files)
    files = place(tmp_path / "..", RELU, IDENTITY.replace("ModelNew", "New"))
    said = kernelbench.judged(*files, inputs=["own"])
    assert "candidate.py has no ModelNew" in said["own"].reason


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = map(str, place(tmp_path, RELU, IDENTITY))
    monkeypatch.setattr("sys.argv", ["plumbline", "judge", "kernelbench", *files, "--json"])
    assert plumbline.main() == 1
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == "fail"
    assert said["inputs"]["own"]["status"] == "pass"
