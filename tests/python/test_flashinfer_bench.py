"""Definitions, workloads and solutions in flashinfer-bench's form, written by us; its traces."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from verdict_schemas import valid

from python_inspector import Verdict
from python_inspector.api.sealed import Sealed
from python_inspector.benchmarks import flashinfer, flashinfer_traces
from python_inspector.benchmarks.stated import judged, status_of, trouble_of
from python_inspector.cli import plumbline
from python_inspector.errors import UsageError

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

REFERENCE = """
import torch
@torch.no_grad()
def run(x, weight, eps):
    y = x.float()
    r = torch.rsqrt(y.pow(2).mean(-1) + eps)
    return (y * r[:, None] * weight.float()).to(torch.bfloat16), r
"""
DEFINITION = {
    "name": "scaled_norm", "op_type": "rmsnorm",
    "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": 32}},
    "inputs": {
        "x": {"shape": ["rows", "width"], "dtype": "bfloat16"},
        "weight": {"shape": ["width"], "dtype": "bfloat16"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "y": {"shape": ["rows", "width"], "dtype": "bfloat16"},
        "r": {"shape": ["rows"], "dtype": "float32"},
    },
    "reference": REFERENCE,
}  # fmt: skip
FILLS = """
from .parts import deviation
def run(x, weight, eps, y, r):
    r.copy_(deviation(x, eps))
    y.copy_(x.float() * r[:, None] * weight.float())
"""
RETURNS = """
from .parts import deviation
def run(x, weight, eps):
    r = deviation(x, eps)
    return (x.float() * r[:, None] * weight.float()).bfloat16(), r
"""
PARTS = """
def deviation(x, eps):
    return 1 / (x.float().pow(2).mean(-1) + eps).sqrt()
"""


def workload(uuid: str, rows: int, **inputs: Any) -> dict[str, Any]:
    given = {"x": {"type": "random"}, "weight": {"type": "random"}, **inputs}
    given["eps"] = {"type": "scalar", "value": 1e-3}
    return {"uuid": uuid, "axes": {"rows": rows}, "inputs": given}


def solution(text: str, parts: str = PARTS, **spec: Any) -> dict[str, Any]:
    return {
        "name": "ours", "definition": "scaled_norm", "author": "ours",
        "spec": {
            "language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run",
            "destination_passing_style": text is not RETURNS, **spec,
        },
        "sources": [
            {"path": "main.py", "content": text},
            {"path": "parts.py", "content": parts},
        ],
    }  # fmt: skip


def said(folder: Path, solved: dict[str, Any], *workloads: dict[str, Any]) -> dict[str, Verdict]:
    scratch = folder / f"scratch{len(list(folder.iterdir()))}"
    given = workloads or (workload("a", 5), workload("b", 8))
    return judged(flashinfer.stated(DEFINITION, given, solved, scratch, root=folder), Sealed())


@pytest.mark.parametrize(
    ("solved", "status"),
    [
        (solution(FILLS), "pass"),
        (solution(RETURNS), "pass"),
        (solution(FILLS, PARTS.replace("+ eps", "+ 2 * eps")), "fail"),
        (solution(FILLS.replace("r.copy_(", "r = (")), "fail"),  # an output that stays as it was
        (solution(RETURNS, destination_passing_style=True), "error"),
    ],
)
def test_a_solution(tmp_path: Path, solved: dict[str, Any], status: str) -> None:
    found = said(tmp_path, solved)
    assert status_of(found) == status, found


def test_hard_inputs_of_workloads(tmp_path: Path) -> None:
    """Rows of zeros have no square of 0.01, random ones do."""
    solved = solution(FILLS, PARTS.replace("mean(-1)", "mean(-1).clamp_min(1e-2)"))
    stated = flashinfer.stated(DEFINITION, [workload("a", 5)], solved, tmp_path / "s")
    assert status_of(judged(stated, Sealed())) == "pass"
    found = judged(stated, Sealed(), hard=["zeros"], keep=tmp_path / "kept")
    assert status_of(found) == "fail"
    assert (tmp_path / "kept" / "smallest").is_dir()


def test_tensors_of_files(tmp_path: Path) -> None:
    save_file({"w": torch.full((32,), 2.0).bfloat16()}, tmp_path / "kept.safetensors")
    source = {"type": "safetensors", "path": "kept.safetensors", "tensor_key": "w"}
    assert said(tmp_path, solution(FILLS), workload("a", 5, weight=source))["a"].status == "pass"
    for key, value, words in (
        ("path", "lost", "there is no file"),
        ("tensor_key", "v", "has no tensor v"),
    ):
        with pytest.raises(UsageError, match=words):
            said(tmp_path, solution(FILLS), workload("a", 5, weight={**source, key: value}))
    with pytest.raises(UsageError, match=r"has \[32\].*the definition says \[5, 32\]"):
        said(tmp_path, solution(FILLS), workload("a", 5, x=source))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d, w, s: d.pop("axes"), "no Definition, Workload or Solution: KeyError"),
        (lambda d, w, s: w["axes"].clear(), "no value for axis rows"),
        (lambda d, w, s: w["inputs"]["x"].update(type="tape"), "input x is tape"),
        (lambda d, w, s: s["spec"].update(language="cuda"), "is written in cuda"),
        (lambda d, w, s: s.update(definition="other"), "is of other, not of scaled_norm"),
        (lambda d, w, s: s["sources"][0].update(path="../x.py"), r"\.\./x\.py is outside of"),
        (lambda d, w, s: d["outputs"]["y"].update(dtype="float7"), "no dtype float7"),
    ],
)
def test_files_of_another_form(tmp_path: Path, change: Any, words: str) -> None:
    made = copy.deepcopy((DEFINITION, workload("a", 5), solution(FILLS)))
    change(*made)
    with pytest.raises(UsageError, match=words):
        judged(flashinfer.stated(made[0], [made[1]], made[2], tmp_path / "s"), Sealed())


def test_the_command_writes_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"definition": "scaled_norm", "workload": workload(u, 5)} for u in "ab"]
    wrong = solution(FILLS.replace("x.float()", "(x.float() + 1)"))
    files = {
        "definition.json": json.dumps(DEFINITION), "solution.json": json.dumps(wrong),
        "workloads.jsonl": "\n".join(map(json.dumps, lines)),
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    words = [str(tmp_path / name) for name in ("definition.json", "workloads.jsonl")]
    words += [str(tmp_path / "solution.json"), "--traces", str(tmp_path / "t.jsonl"), "--json"]
    monkeypatch.setattr("sys.argv", ["plumbline", "judge", "flashinfer-bench", *words])
    assert plumbline.main() == 1
    assert valid(json.loads(capsys.readouterr().out), "judged")["status"] == "fail"
    traces = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [it["workload"]["uuid"] for it in traces] == ["a", "b"]
    made = traces[0]["evaluation"]
    assert (made["status"], made["performance"]) == ("INCORRECT_NUMERICAL", None)
    assert float(made["correctness"]["max_relative_error"]) > 0.01
    valid(made["correctness"]["extra"]["plumbline"], "verdict")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("solved", "status"),
    [
        (solution(FILLS), "PASSED"),
        (solution(RETURNS.replace(".bfloat16(), r", ".half(), r")), "INCORRECT_DTYPE"),
        (solution(RETURNS.replace(", r\n", ", r[:2]\n")), "INCORRECT_SHAPE"),
        (solution(FILLS.replace("r.copy_", "raise OSError")), "RUNTIME_ERROR"),
        (solution(FILLS.replace("r.copy_", "while True: pass\n    r.copy_")), "TIMEOUT"),
    ],
)
def test_statuses_of_the_benchmark(tmp_path: Path, solved: dict[str, Any], status: str) -> None:
    if "def run(x, weight, eps):" in solved["sources"][0]["content"]:
        solved["spec"]["destination_passing_style"] = False
    stated = flashinfer.stated(DEFINITION, [workload("a", 5)], solved, tmp_path / "s")
    verdict = judged(stated, Sealed(timeout=10 if status == "TIMEOUT" else 60))["a"]
    assert flashinfer_traces.STATUSES[trouble_of(verdict)] == status, verdict


def test_the_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of flashinfer-bench, which is not installed here: a stand-in has its names."""
    modules = {
        "flashinfer_bench": {}, "flashinfer_bench.bench": {},
        "flashinfer_bench.bench.evaluators": {"DefaultEvaluator": object},
        "flashinfer_bench.bench.utils": {"make_eval": SimpleNamespace},
        "flashinfer_bench.data": {
            "Correctness": SimpleNamespace,
            "EvaluationStatus": lambda word: SimpleNamespace(value=word),
        },
    }  # fmt: skip
    for name, names in modules.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    evaluator = flashinfer_traces.evaluator()
    definition = SimpleNamespace(model_dump=lambda mode: DEFINITION)
    inputs = [[torch.randn(5, 32).bfloat16(), torch.randn(32).bfloat16(), 1e-3] for _ in range(2)]
    code: dict[str, Any] = {}
    exec(FILLS.replace("from .parts import deviation", PARTS), code)

    def runnable(factor: float) -> Any:
        def kernel(*args: Any) -> None:
            code["run"](*args)
            args[-2].mul_(factor)

        metadata = SimpleNamespace(destination_passing_style=True)
        return type("Runnable", (), {"metadata": metadata, "__call__": lambda _, *a: kernel(*a)})()

    filled = [[torch.ones(5, 32).bfloat16(), torch.ones(5)]] * 2
    rest = {
        "ref_outputs": filled,
        "cfg": None,
        "log_path": "log",
        "device": str(inputs[0][0].device),
    }

    def checked(factor: float) -> Any:
        return evaluator.check_correctness(definition, runnable(factor), inputs, **rest)

    correctness, evaluation = checked(1.0)
    assert evaluation is None
    assert correctness.extra["plumbline"]["status"] == "pass"
    _, evaluation = checked(1.01)
    assert evaluation.status.value == "INCORRECT_NUMERICAL"
    assert "fail" in evaluation.extra_msg
