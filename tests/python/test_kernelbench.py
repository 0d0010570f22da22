"""Candidates in KernelBench's form: problems of ours, right and wrong kernels."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from verdict_schemas import valid

from python_inspector import Verdict
from python_inspector.api import hardware, timed, timing
from python_inspector.api.sealed import Sealed
from python_inspector.benchmarks import backendbench, flashinfer, gpu_mode, kernelbench, opinfo
from python_inspector.benchmarks.stated import judged, status_of
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


TRAINED = """
import torch
from torch import nn
class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.norm = nn.BatchNorm1d(8, momentum={momentum})
        self.share = nn.Dropout({share})
    def forward(self, x):
        y = self.norm(self.linear(x))
        return self.share(y), y.amax(-1)
def get_inputs():
    return [torch.rand(6, 16)]
def get_init_inputs():
    return []
"""
OWN_STATISTICS = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)
    def forward(self, x):
        y = self.linear(x)
        y = (y - y.mean(0)) / (y.var(0, correction=0) + 1e-5).sqrt()
        return y, y.amax(-1)
"""


def trained(name: str = "ModelNew", momentum: float = 0.1, share: float = 0.0) -> str:
    return TRAINED.format(name=name, momentum=momentum, share=share)


def said(files: tuple[Path, Path], **options: Any) -> dict[str, Verdict]:
    return judged(kernelbench.stated(*files, **options), Sealed())


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
    found = said(files)
    assert set(found) == {"own", "hard"}
    assert status_of(found) == status, found


def test_inputs_that_are_never_negative_do_not_decide(tmp_path: Path) -> None:
    """As shipped, `return x` solves a ReLU."""
    files = place(tmp_path, RELU, IDENTITY)
    assert status_of(said(files, inputs=["own"])) == "pass"
    found = said(files)
    assert (found["own"].status, found["hard"].status) == ("pass", "fail")


def test_what_hard_inputs_show_stays_in_a_folder(tmp_path: Path) -> None:
    stated = kernelbench.stated(*place(tmp_path, RELU, IDENTITY), inputs=["own"])
    keep = tmp_path / "kept"
    found = judged(stated, Sealed(), hard=["zeros", "signed"], keep=keep)["own"]
    assert [it.status for it in found.cases] == ["pass", "pass", "fail"]
    assert {"call", "outputs.safetensors", "smallest"} == {it.name for it in keep.iterdir()}
    assert "compare.py" in found.smallest
    assert judged(stated, Sealed(), keep=keep)["own"].status == "pass"
    assert {it.name for it in keep.iterdir()} == {"call", "outputs.safetensors"}, "of the last call"


@pytest.mark.parametrize(("kind", "status"), [("huge", "error"), ("zeros", "pass")])
def test_a_candidate_may_raise_where_the_reference_says_nothing(
    tmp_path: Path, kind: str, status: str
) -> None:
    raises = IDENTITY.replace("return x", "assert x.amax() < 1e10 and x.any(1).all(); return x*1")
    problem = RELU.replace("torch.relu(x)", "x / x.any(1, keepdim=True)")
    files = place(tmp_path, problem, raises)
    found = judged(kernelbench.stated(*files, inputs=["own"]), Sealed(), hard=[kind])
    assert found["own"].status == status, found


def test_the_candidate_never_sees_the_problem(tmp_path: Path) -> None:
    thief = IDENTITY.replace("return x", "import sys; return sys.modules['named_problem'].answer")
    files = place(tmp_path, RELU, thief)
    found = said(files, inputs=["own"])
    assert found["own"].status == "error"
    assert "KeyError: 'named_problem'" in found["own"].reason


def test_files_of_another_form(tmp_path: Path) -> None:
    files = place(tmp_path, RELU.replace("get_inputs", "inputs"), IDENTITY)
    with pytest.raises(UsageError, match=r"problem\.py has no get_inputs"):
        said(files)
    files = place(tmp_path, "import nowhere\n" + RELU, IDENTITY)
    with pytest.raises(UsageError, match=r"problem\.py:get_init_inputs: ModuleNotFoundError"):
        said(files)
    files = place(tmp_path / "..", RELU, IDENTITY.replace("ModelNew", "New"))
    found = said(files, inputs=["own"])
    assert "candidate.py has no ModelNew" in found["own"].reason


@pytest.mark.parametrize(
    ("candidate", "status", "word"),
    [
        (trained(), "pass", ""),
        (trained(momentum=0.2), "fail", "norm.running_mean"),
        (trained().replace("y.amax(-1)", "y.amin(-1)"), "fail", "out.0.1"),
        (OWN_STATISTICS, "pass", ""),
    ],
)
def test_a_batch_norm_as_it_is_shipped(
    tmp_path: Path, candidate: str, status: str, word: str
) -> None:
    """In train mode: its statistics are results, where the candidate has such buffers."""
    files = place(tmp_path, trained("Model"), candidate)
    own = said(files, inputs=["own"])["own"]
    assert own.status == status, own
    assert word in str(own)
    assert any("running_var" in name for name in own.not_judged) == (candidate == OWN_STATISTICS)


def test_each_call_begins_with_the_buffers_of_the_constructor(tmp_path: Path) -> None:
    remembers = trained().replace(
        "return self.share", "self.norm.running_mean.zero_(); return self.share"
    )
    found = said(place(tmp_path, trained("Model"), remembers), inputs=["own"])
    assert "running_mean" in str(found["own"])
    assert found["own"].status == "fail"


def test_dropout_in_train_mode_is_refused_by_name(tmp_path: Path) -> None:
    files = place(tmp_path, trained("Model", share=0.5), trained(share=0.5))
    own = said(files, inputs=["own"])["own"]
    assert own.status == "unsupported"
    assert "Dropout (share) draws random numbers" in own.reason
    assert said(files, inputs=["own"], evaluated=True)["own"].status == "pass"


def test_what_had_ended_before_a_candidate_raises_is_judged(tmp_path: Path) -> None:
    picky = IDENTITY.replace("return x", "assert x.min() >= 0; return x")
    found = said(place(tmp_path, RELU, picky))
    assert (found["own"].status, found["hard"].status) == ("pass", "error")
    assert "the candidate raised AssertionError" in found["hard"].reason
    assert status_of(found) == "error"
    as_picky = RELU.replace("return torch.relu", "assert x.min() >= 0; return torch.relu")
    found = said(place(tmp_path, as_picky, picky))
    assert (found["own"].status, found["hard"].status) == ("pass", "unsupported")
    assert "the reference raises AssertionError" in found["hard"].reason


@pytest.mark.parametrize("form", [kernelbench, backendbench, flashinfer, gpu_mode, opinfo])
def test_an_adapter_is_short(form: ModuleType) -> None:
    assert form.__file__ and len(Path(form.__file__).read_text().splitlines()) <= 150


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = map(str, place(tmp_path, RELU, IDENTITY))
    monkeypatch.setattr("sys.argv", ["plumbline", "judge", "kernelbench", *files, "--json"])
    assert plumbline.main() == 1
    made = valid(json.loads(capsys.readouterr().out), "judged")
    assert (made["form"], made["status"]) == ("kernelbench", "fail")
    assert made["inputs"]["own"]["status"] == "pass"


def test_the_command_times_what_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (timing, "AGREE", 0.999), (timing, "BATCH", 1e-3), (timing, "MOST_CALLS", 16),
        (timed, "cache_bytes", lambda device: 1 << 16),
        (hardware, "cache_bytes", lambda device: 1 << 16),
        (torch, "compile", lambda like: like),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    files = place(tmp_path, PROBLEM, CANDIDATE.format(eps="1e-5", end="torch.relu(y)"))
    words = ["judge", "kernelbench", *map(str, files), "--inputs", "own", "--json", "--time"]
    words += ["--hard", "ties,signed", "--keep", str(tmp_path / "kept")]
    monkeypatch.setattr("sys.argv", ["plumbline", *words])
    assert plumbline.main() == 0
    made = valid(json.loads(capsys.readouterr().out), "judged")
    assert set(made["inputs"]) == {"own", "timed"}
    assert "3 of 3 cases pass" in made["inputs"]["own"]["reason"]
    assert (tmp_path / "kept" / "call").is_dir()
    assert set(made["inputs"]["timed"]["timing"]["microseconds"]) == {
        "candidate", "like", "compiled",
    }  # fmt: skip
