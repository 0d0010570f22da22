"""libplumbline_judge.so: the same verdicts as the binary, and errors as text."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal

from python_inspector import check
from python_inspector.api import checking
from python_inspector.api.verdict import WrongError
from python_inspector.errors import HarnessError
from python_inspector.format.operands import output_of, save
from python_inspector.native import JudgeLibrary, find_harness, find_library


@pytest.fixture
def library(harness: Path) -> JudgeLibrary:
    path = find_library(harness)
    if path is None:
        pytest.skip("libplumbline_judge.so is not built")
    return JudgeLibrary(path)


def test_library_and_binary_say_the_same(
    library: JudgeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = torch.nn.Linear(32, 24)
    calls: list[tuple[Any, Any]] = [
        (lambda x: linear(x), linear),
        (lambda x: linear(x) * 1.001, linear),
    ]

    def verdicts() -> list[Any]:
        out = []
        for function, like in calls:
            try:
                verdict = check(function, like=like, inputs=normal(4, 32))
            except WrongError as error:
                verdict = error.verdict
            out.append({k: v for k, v in verdict.figures.items() if k not in ("again", "fixture")})
        return out

    with_library = verdicts()
    monkeypatch.setattr(checking, "library_of", lambda harness: None)
    assert verdicts() == with_library


def test_errors_of_the_library_are_text(library: JudgeLibrary, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"ended with 3: .*recording\.json"):
        library.judge(tmp_path, tmp_path / "none")
    with pytest.raises(HarnessError, match=r'ended with 2: .*contract is "odd"'):
        library.judge(tmp_path, tmp_path, contract="odd")
    (tmp_path / "recording.json").write_text("{")
    with pytest.raises(HarnessError, match="ended with 3"):
        library.judge(tmp_path, tmp_path)


def test_native_blocks_are_left_to_the_binary(library: JudgeLibrary, tmp_path: Path) -> None:
    recording = Path(__file__).parents[2] / "fixtures" / "llama-a1" / "whole-f32"
    save({"model.norm#0/out": output_of(normal(2, 15, 32))}, tmp_path / "y")
    [item] = library.judge(recording, tmp_path / "y")
    assert item["status"] == "unsupported"
    assert "judged by `harness judge`" in item["reason"]


def test_a_library_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.so").write_text("no library")
    with pytest.raises(HarnessError, match=r"x\.so cannot be used"):
        JudgeLibrary(tmp_path / "x.so")
    monkeypatch.setenv("PLUMB_JUDGE_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(HarnessError, match=r"none\.so \(PLUMB_JUDGE_LIBRARY\) is no file"):
        find_library(find_harness())


def test_a_small_case_takes_less_than_a_third_of_a_second(library: JudgeLibrary) -> None:
    norm, x = torch.nn.RMSNorm(64), normal(4, 9, 64)
    check(norm, like=norm, inputs=x)  # imports, and shapes of operations that are looked up once
    took = []
    for _ in range(5):
        start = time.process_time()
        check(norm, like=norm, inputs=x)
        took.append(time.process_time() - start)
    assert min(took) < 0.3
