"""Submissions in GPU MODE's form: a task of ours, right and wrong kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from python_inspector import Verdict
from python_inspector.api.sealed import Sealed
from python_inspector.benchmarks import gpu_mode
from python_inspector.benchmarks.stated import judged, status_of
from python_inspector.errors import UsageError

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "task.py", "source": "task.py"}
  - {"name": "utils.py", "source": "../utils.py"}
  - {"name": "reference.py", "source": "reference.py"}
  - {"name": "eval.py", "source": "../utils.py"}
lang: "py"
tests:
  - {"rows": 3, "width": 16, "seed": 11}
  - {"rows": 5, "width": 32, "seed": 12}
"""
REFERENCE = """
import torch
from task import input_t, output_t
from utils import make_match_reference
def generate_input(rows: int, width: int, seed: int) -> input_t:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    return x, torch.empty_like(x)
def ref_kernel(data: input_t) -> output_t:
    x, out = data
    out[...] = x.softmax(-1)
    return out
check_implementation = make_match_reference(ref_kernel)
"""
UTILS = """
def make_match_reference(reference):
    def wrapped(data, output):
        return (reference(data) - output).abs().max() < 1e-2
    return wrapped
"""
SUBMISSION = """
from task import input_t, output_t
def custom_kernel(data: input_t) -> output_t:
    x, out = data
    e = (x - x.amax(-1, keepdim=True)).exp()
    {end}
"""
FILLS = "out[...] = e / e.sum(-1, keepdim=True); return out"


def place(folder: Path, end: str = FILLS, task: str = TASK, reference: str = REFERENCE) -> Path:
    (folder / "softmax").mkdir(exist_ok=True)
    (folder / "utils.py").write_text(UTILS)
    texts = {
        "task.yml": task, "reference.py": reference, "task.py": "input_t = output_t = tuple",
        "submission.py": SUBMISSION.format(end=end),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / "softmax" / name).write_text(text)
    return folder / "softmax"


def said(folder: Path, scratch: Path, **options: object) -> dict[str, Verdict]:
    scratch.mkdir()
    stated = gpu_mode.stated(folder, folder / "submission.py", scratch, salt=7, **options)
    return judged(stated, Sealed())


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (FILLS, "pass"),
        ("return e / e.sum(-1, keepdim=True)", "pass"),  # the benchmark compares results alone
        ("out[...] = e / e.sum(-1, keepdim=True) * 1.001; return out", "fail"),
        ("out[:2] = e[:2] / e[:2].sum(-1, keepdim=True); return out", "fail"),
        ("x.zero_(); out[...] = 1 / x.shape[1]; return out", "fail"),
        ("import reference; return reference.ref_kernel(data)", "error"),
    ],
)
def test_a_submission(tmp_path: Path, end: str, status: str) -> None:
    found = said(place(tmp_path, end), tmp_path / "scratch")
    assert status_of(found) == status, found
    if status != "error":
        assert list(found)[:2] == ["rows=3, width=16, seed=11", "rows=5, width=32, seed=12"]
        assert len(found) == 4  # the same with other seeds


def test_hard_inputs_of_tests(tmp_path: Path) -> None:
    end = "e = x.exp(); return e / e.sum(-1, keepdim=True)"
    folder = place(tmp_path, end)
    (tmp_path / "scratch").mkdir()
    stated = gpu_mode.stated(folder, folder / "submission.py", tmp_path / "scratch", inputs=["own"])
    assert status_of(judged(stated, Sealed())) == "pass"
    assert status_of(judged(stated, Sealed(), hard=["huge"])) == "fail"


def test_data_that_are_known_do_not_help(tmp_path: Path) -> None:
    known = (
        "import torch; torch.manual_seed(0); g = torch.Generator().manual_seed(10 + len(x) // 2); "
    )
    known += "x = torch.randn(x.shape, generator=g); return x.softmax(-1)"
    folder = place(tmp_path, known)
    assert status_of(said(folder, tmp_path / "own", inputs=["own"])) == "pass"
    assert status_of(said(folder, tmp_path / "both")) == "fail"


@pytest.mark.parametrize(
    ("task", "reference", "words"),
    [
        ("files: []", REFERENCE, "expected `files` and `tests`"),
        (TASK.replace('"py"', '"cu"'), REFERENCE, "the language cu"),
        (TASK + "multi_gpu: true\n", REFERENCE, "several devices"),
        (TASK.replace("task.py", "tusk.py"), REFERENCE, r"tusk\.py: there is no such file"),
        (TASK, REFERENCE.replace("ref_kernel", "f"), "has no ref_kernel"),
        (TASK, REFERENCE.replace("width: int", "depth: int"), r"generate_input\(rows=3"),
        (TASK, REFERENCE.replace("softmax(-1)", "softmax(5)"), "ref_kernel raises IndexError"),
        (TASK, "import nowhere", "reference.py:ref_kernel: ModuleNotFoundError"),
        (
            TASK,
            REFERENCE.replace("make_match_reference(ref_kernel)", "lambda d, o: o.sum() == len(o)"),
            "check_implementation does not call ref_kernel",
        ),
    ],
)
def test_tasks_of_another_form(tmp_path: Path, task: str, reference: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        said(place(tmp_path, task=task, reference=reference), tmp_path / "scratch")
