"""The corpus: rows that are what they say, gates as they are described, one part measured again."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from reports.__main__ import main as reports  # noqa: E402
from tests.corpus import __main__ as corpus  # noqa: E402
from tests.corpus.catalogue import kernels  # noqa: E402
from tests.corpus.float64 import Truth  # noqa: E402
from tests.corpus.gates import GATES  # noqa: E402
from tests.corpus.rows import Kernel, Problem, Values  # noqa: E402

STORED = ROOT / "reports" / "corpus.jsonl.xz"
KERNELS = [row for rows in kernels().values() for row in rows]


def test_it_has_three_hundred_wrong_kernels_and_a_hundred_right_ones() -> None:
    assert sum(bool(row.fault) for row in KERNELS) >= 300
    assert sum(not row.fault for row in KERNELS) >= 100


def test_no_two_kernels_have_one_name() -> None:
    assert [name for name, count in Counter(row.name for row in KERNELS).items() if count > 1] == []


def test_a_source_is_a_thread() -> None:
    thread = re.compile(r"[\w.-]+/[\w.-]+#\d+")
    assert [row.source for row in KERNELS if row.source and not thread.fullmatch(row.source)] == []


def test_kernels_of_a_problem_are_right_or_wrong() -> None:
    for rows in kernels().values():
        assert {bool(row.fault) for row in rows} == {True, False}
        assert len({id(row.problem) for row in rows}) == 1


@pytest.mark.usefixtures("harness")
def test_a_part_is_judged_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """Of all of them by ci/nightly."""
    code = corpus.main(["--part", "3/13", "--against", str(STORED)])
    assert code == 0, capsys.readouterr().out


@pytest.mark.usefixtures("harness")
def test_what_is_misjudged_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        *_PROBLEM.wrong(("formula", "right all the same", torch.relu)),
        *_PROBLEM.right(("wrong all the same", torch.abs)),
    ]
    monkeypatch.setattr("tests.corpus.catalogue.kernels", lambda device: {"relu": rows})
    file = tmp_path / "corpus.jsonl.xz"
    assert corpus.main(["--out", str(file)]) == 1
    said = capsys.readouterr().out
    assert "relu: right all the same, f32: its error is" in said
    assert "relu: right all the same, f32: pass" in said
    assert "relu: wrong all the same, f32: fail" in said
    assert corpus.main(["--against", str(file)]) == 1  # an error that is a rounding stays one
    assert "relu: wrong all the same" not in capsys.readouterr().out
    assert reports(["corpus", str(file)]) == 0
    table = capsys.readouterr().out
    assert "need hard operands" not in table
    assert "check() is wrong: relu: right all the same, f32: pass" in table
    assert "check() is wrong: relu: wrong all the same, f32: fail, normal: " in table


@pytest.mark.usefixtures("harness")
def test_what_needs_hard_operands_is_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = replace(_PROBLEM, kinds=("uniform",), hard=True)
    rows = [
        *problem.wrong(
            ("sign", "the input", lambda x: x),
            ("formula", "no row of this problem", lambda x: x + 1),
        ),
        *problem.right(("by maximum", lambda x: x.clamp_min(0))),
    ]
    monkeypatch.setattr("tests.corpus.catalogue.kernels", lambda device: {"relu": rows})
    file = tmp_path / "corpus.jsonl.xz"
    assert corpus.main(["--out", str(file)]) == 1
    troubles = capsys.readouterr().out.splitlines()
    assert troubles[0].startswith("relu: no row of this problem, f32: it is fail without hard")
    assert reports(["corpus", str(file)]) == 0
    table = capsys.readouterr().out
    assert re.search(r"^kernels +0 +0 +0 +0$", table, re.M)
    assert re.search(r"^need hard operands .*\nkernels +2 +1$", table, re.M)
    assert re.search(r"^check\(\) +1 +0\ncheck\(hard=True\) +0 +0$", table, re.M)
    assert reports(["corpus", "--by-fault", str(file)]) == 0
    assert "sign" not in capsys.readouterr().out


_PROBLEM = Problem("relu", torch.relu, lambda v: (v(4, 8),), ("f32",))


def _passes(gate: str, wrong: Any, problem: Problem = _PROBLEM, dtype: str = "f32") -> bool:
    found = next(it for it in GATES if it.name == gate)
    return found.passes(Kernel(problem, "a kernel", wrong, "formula"), dtype, "cpu")


@pytest.mark.parametrize(
    ("gate", "kernel", "passes"),
    [
        ("KernelBench", lambda x: x, True),  # its values are never negative
        ("KernelBench", lambda x: x.relu() + 9e-5, True),
        ("KernelBench", lambda x: x.relu() + 3e-4, False),
        ("KernelBench", lambda x: x.zero_(), False),
        ("KernelBench", lambda x: x.relu().half(), False),
        ("BackendBench", lambda x: x.relu() + 9e-3, True),
        ("BackendBench", lambda x: x.relu() + 3e-2, False),
        ("flashinfer-bench", lambda x: x, False),
        ("flashinfer-bench", lambda x: x.relu() + 9e-3, True),
        ("flashinfer-bench", lambda x: x.relu() * 1.009, True),
        ("flashinfer-bench", lambda x: x.relu() * 1.1, False),
        ("robust-kbench", lambda x: x.relu() + 9e-6, True),
        ("robust-kbench", lambda x: x.relu() + 3e-5, False),
        ("GPU MODE", lambda x: x.relu() + 9e-3, True),
        ("GPU MODE", lambda x: x.relu() + 0.03, False),
        ("GPU MODE", lambda x: 1 / 0, False),
    ],
)
def test_a_gate_is_as_it_is_described(gate: str, kernel: Any, passes: bool) -> None:
    assert _passes(gate, kernel) == passes


def test_kernelbench_allows_more_in_16_bits() -> None:
    wrong = lambda x: x.relu() + 9e-3  # noqa: E731
    assert _passes("KernelBench", wrong, dtype="bf16") and not _passes("KernelBench", wrong)


def test_flashinfer_bench_allows_experts_one_element_in_twenty() -> None:
    some = Problem("some", torch.relu, lambda v: (v(10, 8),), share=0.95)
    for wrong, passes in ((4, True), (5, False)):

        def kernel(x: torch.Tensor, count: int = wrong) -> torch.Tensor:
            y = x.relu()
            y.view(-1)[:count] += 1
            return y

        assert _passes("flashinfer-bench", kernel, some) == passes


def test_a_nan_in_the_reference_hides_any_number_from_flashinfer_bench_alone() -> None:
    nan = Problem("nan", lambda x: x.sqrt(), lambda v: (v(4, 8),), ("f32",))
    other = lambda x: x.sqrt().nan_to_num(7.0)  # noqa: E731
    assert {gate.name for gate in GATES if _passes(gate.name, other, nan)} == {
        "KernelBench",  # which has no negative values
        "BackendBench",
        "flashinfer-bench",
    }


def test_an_error_in_float64_is_that_of_right_kernels_or_more() -> None:
    right = list(_PROBLEM.right(("by maximum", lambda x: x.clamp_min(0))))
    truth = Truth(_PROBLEM, right, "f32")
    assert truth.error(torch.relu) == 0
    assert truth.error(lambda x: x) > 2**20
    assert truth.error(lambda x: x.relu()[:3]) == math.inf
    assert truth.error(lambda x: x.relu().where(x < 1, math.inf)) == math.inf
    assert truth.error(lambda x: (x.relu(), x.zero_())[0]) == math.inf
    assert 0.5 < truth.error(lambda x: x.relu() * (1 + 2**-23)) < 8


def test_values_of_one_call_differ_and_repeat() -> None:
    first, again = (Values("normal", torch.float32, seed=3) for _ in range(2))
    x, y = first(4, 8), first(4, 8)
    assert not torch.equal(x, y) and torch.equal(x, again(4, 8))
    assert 0 <= Values("uniform", torch.float32)(999).min() < 0.01


def test_the_stored_table_counts_what_passes_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert reports(["corpus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    passed = {line.split("  ")[0]: line.split()[-4:-2] for line in lines[3:9]}
    assert list(passed) == [*(it.name for it in GATES), "check()"]
    assert passed["robust-kbench"][1] == "-"
    wrong = {name: int(cells[0]) for name, cells in passed.items()}
    assert wrong.pop("check()") < min(wrong.values())
    hard = {line.split("  ")[0]: line.split()[-2:] for line in lines[14:21]}
    assert hard["check()"][0] == lines[13].split()[-2], "they need hard=True"
    assert hard["check(hard=True)"] == ["0", "0"]
    assert reports(["corpus", "--by-fault"]) == 0
    assert "precision" in capsys.readouterr().out
    assert reports(["corpus", "--list"]) == 0
    assert "reported: vllm-project/vllm#33638" in capsys.readouterr().out
