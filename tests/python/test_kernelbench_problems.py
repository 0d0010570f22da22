"""Forty problems of ours in KernelBench's form: right candidates pass, wrong ones fail."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from kernelbench_problems import TABLE, WRONG, Row, text

from python_inspector import Verdict
from python_inspector.api.sealed import Made
from python_inspector.benchmarks import kernelbench
from python_inspector.benchmarks.stated import Stated, checked

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")


def said(row: Row, folder: Path, result: str) -> dict[str, Verdict]:
    """As the command's, but for the process: the candidate is called in this one."""
    files = folder / f"{row.name}_problem.py", folder / f"{row.name}_candidate.py"
    files[0].write_text(text(row))
    files[1].write_text(text(row, name="ModelNew", result=result))
    stated: Stated = kernelbench.stated(*files)
    assert isinstance(stated.candidate, Made)
    kernel = kernelbench.candidate(*stated.candidate.arguments)
    return {kind: checked(kernel, stated, it, salt=3) for kind, it in stated.inputs.items()}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_right_and_wrong(tmp_path: Path, row: Row) -> None:
    right = said(row, tmp_path, "{}")
    assert [verdict.status for verdict in right.values()] == ["pass", "pass"], right
    (tmp_path / "wrong").mkdir()
    wrong = said(row, tmp_path / "wrong", WRONG)
    assert "fail" in [verdict.status for verdict in wrong.values()], wrong


def test_they_are_forty_and_seven_are_convolutions_in_3d() -> None:
    assert len({row.name for row in TABLE}) == 40
    assert sum("3d" in row.made for row in TABLE) >= 7
    for row in TABLE:
        ast.parse(text(row, full=True))
