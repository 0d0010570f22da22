"""Folders in BackendBench's form: kernels of ours for operators of torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from python_inspector.api.sealed import Sealed
from python_inspector.benchmarks import backendbench
from python_inspector.benchmarks.stated import judged, status_of
from python_inspector.errors import UsageError

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

SOFTMAX = """
def _softmax__default_kernel_impl(x, dim, half_to_float):
    kept = x.dtype
    if not x.ndim or not x.numel():
        return x * 0 + 1
    x = x.double() if {wide} else x
    e = (x - x.amax(dim, keepdim=True)).exp()
    return (e / e.sum(dim, keepdim=True)).to(kept)
"""
ADD = """
def {name}_kernel_impl(self, other, *, alpha=1):
    return self {sign} alpha * other
"""
TRACE = """Operator: aten.mul.Tensor
cnt: 1, ((T([3], f32), T([3], f32)), {})
Operator: aten.add.Tensor
cnt: 12, ((T([4, 16], bf16), T([4, 16], bf16)), {})
cnt: 1, ((T([5], f32), T([2, 5], f32, [1, 2])), {'alpha': 2})
"""


def place(folder: Path, name: str, text: str, file: str = "") -> Path:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / f"{name}_implementation{file}.py").write_text(text)
    return folder / name


@pytest.mark.parametrize(("wide", "status"), [(True, "pass"), (False, "fail")])
def test_samples_of_opinfo(tmp_path: Path, wide: bool, status: str) -> None:
    """They call aten._softmax with its own arguments; sums in 16 bits are wrong."""
    text = SOFTMAX.format(wide=wide)
    folder = place(tmp_path, "_softmax__default", text, "_v1")
    place(tmp_path, "_softmax__default", "no code", "_v2")  # the first of the files counts
    found = judged(backendbench.stated(folder, dtypes=["bf16"], most=4), Sealed())
    assert status_of(found) == status, found
    assert any(name.startswith("softmax bf16 call ") for name in found)


def test_a_trace_of_the_benchmark(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text(TRACE)
    for sign, status in (("+", "pass"), ("-", "fail")):
        folder = place(tmp_path, "add__Tensor", ADD.format(name="add__Tensor", sign=sign))
        found = judged(backendbench.stated(folder, trace=tmp_path / "trace.txt"), Sealed())
        assert {name: verdict.status for name, verdict in found.items()} == {
            "line 4": status, "line 5": status,
        }  # fmt: skip


def test_hard_inputs_of_a_trace(tmp_path: Path) -> None:
    """The benchmark's tensors are never negative."""
    (tmp_path / "trace.txt").write_text(
        "Operator: aten.relu.default\ncnt: 1, ((T([4, 8], f32),), {})"
    )
    text = "def relu__default_kernel_impl(x):\n    return x.clone()\n"
    stated = backendbench.stated(
        place(tmp_path, "relu__default", text), trace=tmp_path / "trace.txt"
    )
    assert status_of(judged(stated, Sealed())) == "pass"
    assert status_of(judged(stated, Sealed(), hard=["signed"])) == "fail"


def test_an_operator_in_place(tmp_path: Path) -> None:
    text = ADD.format(name="add___Tensor", sign="+").replace("return self +", "return self.add_(")
    folder = place(tmp_path, "add___Tensor", text.rstrip() + ")\n")
    assert status_of(judged(backendbench.stated(folder, dtypes=["f32"]), Sealed())) == "pass"
    out_of_place = place(tmp_path, "add___Tensor", ADD.format(name="add___Tensor", sign="+"))
    assert status_of(judged(backendbench.stated(out_of_place, dtypes=["f32"]), Sealed())) == "fail"


@pytest.mark.parametrize(
    ("name", "trace", "words"),
    [
        ("add__Tensor", "Operator: aten.add.Tensor\ncnt: 1, (T([2], f33),)", r"trace\.txt, line 2"),
        ("add__Tensor", "Operator: aten.add.Tensor\ncnt: 1, ((__import__('os'),), {})", "line 2"),
        ("add__Tensor", "", r"trace\.txt does not call aten\.add\.Tensor"),
        ("add__Tonsor", "", r"torch\.ops\.aten has no add\.Tonsor"),
        ("none", None, "torch.ops.aten has no none.default"),
    ],
)
def test_folders_of_another_form(tmp_path: Path, name: str, trace: str | None, words: str) -> None:
    file = tmp_path / "trace.txt"
    file.write_text(trace or "")
    folder = place(tmp_path, name, ADD.format(name=name, sign="+"))
    with pytest.raises(UsageError, match=words):
        backendbench.stated(folder, trace=file if trace is not None else None)
    with pytest.raises(UsageError, match=r"there is no .*_implementation\*\.py"):
        backendbench.stated(tmp_path)
