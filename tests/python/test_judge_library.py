"""libplumbline_judge.so: the same verdicts as the binary, and errors as text."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from checked import normal
from harness_runs import ROOT, command

from python_inspector import check, native, record
from python_inspector.api.verdict import WrongError
from python_inspector.errors import HarnessError, RecordWarning
from python_inspector.format.operands import Output, output_of, save
from python_inspector.format.safetensors_file import read_header
from python_inspector.models.any_tiny import build_any
from python_inspector.native import JudgeLibrary, find_harness, find_library


@pytest.fixture
def library(harness: Path) -> JudgeLibrary:
    path = find_library(harness)
    if path is None:
        pytest.skip("libplumbline_judge.so is not built")
    return JudgeLibrary(path)


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_library_and_binary_say_the_same(
    library: JudgeLibrary, tmp_path: Path, factor: float
) -> None:
    linear = torch.nn.Linear(32, 24)
    kept = tmp_path / "kept"
    try:
        check(
            lambda x: linear(x) * factor,
            like=linear,
            inputs=normal(4, 32),
            keep=kept,
            explain=False,
        )
    except WrongError as error:
        assert factor != 1, error
    statuses = _judged_by_both(library, kept / "call", kept / "outputs.safetensors")
    assert statuses == ["pass" if factor == 1 else "fail"]


@pytest.mark.parametrize("recording", ["llama-a1/whole-f32", "blocks/whole-bf16"])
def test_library_and_binary_say_the_same_of_native_blocks(
    library: JudgeLibrary, tmp_path: Path, recording: str
) -> None:
    folder = ROOT / "fixtures" / recording
    document = json.loads((folder / "recording.json").read_text())
    stored = read_header(folder / "tensors.safetensors")
    given: dict[str, Output] = {}
    kinds: set[str] = set()
    for call in document["checkpoints"]:
        wrong = call["block"] in kinds  # the second of a kind is
        kinds.add(call["block"])
        for name, output in call["outputs"].items():
            y = stored.read(output["tensor"])
            if wrong and y.dtype.is_floating_point:
                y *= 1.01
            given[f"{call['id']}/{name}"] = output_of(y)
    save(given, tmp_path / "y")
    statuses = _judged_by_both(library, folder, tmp_path / "y")
    assert {"pass", "fail"} <= set(statuses) and "unsupported" not in statuses


def _judged_by_both(library: JudgeLibrary, recording: Path, outputs: Path) -> list[str]:
    """The statuses, after all that library and binary say was compared."""
    results = outputs.with_name("verdicts.json")
    command("judge", str(recording), str(outputs), "--no-margins", "--json", str(results))
    items = map(json.loads, results.read_text().splitlines())
    binary = [item for item in items if item["type"] == "checkpoint"]
    judged = library.judge(recording, outputs, margins=False)
    for item in (*judged, *binary):
        item.pop("again", None)
    assert judged == binary
    return [item["status"] for item in judged]


def test_without_a_library_check_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "find_library", lambda binary: None)
    native._library_at.cache_clear()
    with pytest.raises(HarnessError, match=r"no libplumbline_judge\.so: build it with ci/verify"):
        check(torch.relu, like=torch.relu, inputs=normal(4, 32))


def test_a_recording_without_a_library_has_no_bugs_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "find_library", lambda binary: None)
    native._library_at.cache_clear()
    model = build_any("apertus", torch.bfloat16, "eager", 11)
    with (
        pytest.warns(RecordWarning, match="bugs are not sought: no libplumbline_judge"),
        record(model, tmp_path / "run") as recorder,
        torch.no_grad(),
    ):
        model(torch.arange(3, 25).view(2, 11), use_cache=False)
    assert recorder is not None
    written = json.loads((tmp_path / "run" / "recording.json").read_text())
    assert all("bugs" not in checkpoint for checkpoint in written["checkpoints"])
    assert any("spread" in it for c in written["checkpoints"] for it in c["outputs"].values())


def test_errors_of_the_library_are_text(library: JudgeLibrary, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"ended with 3: .*recording\.json"):
        library.judge(tmp_path, tmp_path / "none")
    with pytest.raises(HarnessError, match=r'ended with 2: .*contract is "odd"'):
        library.judge(tmp_path, tmp_path, contract="odd")
    (tmp_path / "recording.json").write_text("{")
    with pytest.raises(HarnessError, match="ended with 3"):
        library.judge(tmp_path, tmp_path)


def test_figures_that_make_no_sense_are_refused(library: JudgeLibrary) -> None:
    figures = [0.0, 0.0, 0.0]
    description = {
        "dtype": "f32",
        "axes": ["channel"],
        "shape": [4],
        "n": 4,
        "valid": 4,
        "rows": 1,
        "constant": False,
        "groups": {"channel": [0, True]},
        "spread": {"runs": 2} | dict.fromkeys(("tensor", "channel", "element", "gain"), figures),
        "truncated": None,
        "operations": [{"op": "mul", "stores": "f32"}],
        "ways": [],
    }
    limits = library.limits(json.dumps(description))
    sizes = dict(limits.record)
    assert sizes["channel"] == 5 and sizes["energy"] == 4 and "bits" not in sizes
    with pytest.raises(HarnessError, match=r"ended with 2: \[limits\] a record ends .* too early"):
        limits.set(torch.zeros(3, dtype=torch.float64))
    gains, record = torch.zeros(1 + 16, dtype=torch.float64), torch.zeros(sum(sizes.values()))
    limits.set(torch.cat([gains, record.double()]))
    assert limits.judge(record.double())["margin"] == 0
    with pytest.raises(HarnessError, match=r"ended with 3: .*ways: has 1 ways to round f32"):
        library.limits(json.dumps(description | {"ways": [["first", figures]]}))
    with pytest.raises(HarnessError, match="ended with 3"):
        library.limits("{")


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
