"""The committed recordings and how they are made again."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from python_inspector.cases import committed
from python_inspector.cases.case import Case
from python_inspector.cases.made_cases import MADE_CASES
from python_inspector.cli.inspector import main
from python_inspector.errors import FormatError
from python_inspector.format.validate import find_recordings, validate
from python_inspector.models import tiny

FIXTURES = Path(__file__).parents[2] / "fixtures"
SMALL = "llama-a1/padded-f32-sdpa"


def load(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((FIXTURES / name / "recording.json").read_text())
    return result


def test_the_folder_holds_exactly_the_cases() -> None:
    found = {str(path.relative_to(FIXTURES)) for path in find_recordings(FIXTURES)}
    assert found == {case.name for case in committed.CASES}
    assert len(found) == len(committed.CASES), "names are unique"


def test_names_say_mode_and_dtype() -> None:
    for case in committed.CASES:
        assert re.fullmatch(
            r"[a-z0-9-]+/(whole|decode|chunked|padded|padded-decode)-(f32|bf16|f16)(-[a-z0-9]+)*",
            case.name,
        )
        provenance = load(case.name)["provenance"]
        folder = case.name.split("/")[1]
        assert folder.startswith(f"{provenance['run']['mode']}-{provenance['dtype']}")
        assert provenance["warnings"] == [], case.name


def test_sizes_stay_within_the_limits() -> None:
    for case in committed.CASES:
        size = sum(path.stat().st_size for path in (FIXTURES / case.name).iterdir())
        assert size < committed.CASE_LIMIT, case.name
    everything = sum(p.stat().st_size for p in FIXTURES.rglob("*") if p.is_file())
    assert everything < committed.TOTAL_LIMIT


def test_every_block_is_recorded_in_float32_and_in_bfloat16() -> None:
    from python_inspector.format.blocks import BLOCKS

    seen: dict[str, set[str]] = defaultdict(set)
    for case in committed.CASES:
        for checkpoint in load(case.name)["checkpoints"]:
            seen[checkpoint["block"]].add(case.dtype)
    assert set(seen) == set(BLOCKS)
    seen["cast"].add("f32")  # where there is nothing to cast
    for block, dtypes in seen.items():
        assert {"f32", "bf16"} <= dtypes, block


def test_every_value_of_a_parameter_with_few_values_is_recorded() -> None:
    seen: dict[str, set[Any]] = defaultdict(set)
    for case in committed.CASES:
        for checkpoint in load(case.name)["checkpoints"]:
            for name, value in checkpoint["params"].items():
                if isinstance(value, str | bool):
                    seen[name].add(value)
    for case in MADE_CASES:  # what is not committed is recorded by test_made_recordings.py
        if isinstance(case, Case) and case.model in tiny.MODELS:
            rope = tiny.MODELS[case.model].config.get("rope_parameters", {})
            seen["type"] |= {rope["rope_type"]} if "rope_type" in rope else set()
            seen["truncate"] |= {rope["truncate"]} if "truncate" in rope else set()
    assert seen["type"] == {"default", "linear", "dynamic", "llama3", "yarn", "longrope"}
    assert seen["style"] == {"half", "interleaved"}
    assert seen["rounding"] == {"before", "after"}
    assert seen["function"] == {"silu", "gelu", "gelu_pytorch_tanh", "tanh"}
    assert seen["form"] == {"pre_norm", "sandwich", "additive", "bool", "chunk", "step"}
    assert seen["rotary"] == seen["adapters"] == {True, False}
    assert seen["fully_masked"] == {"uniform", "zero", "excluded"}
    assert seen["causal"] == {True, False}
    assert seen["truncate"] == {True, False}


def test_selecting() -> None:
    assert [case.name for case in committed.select(f"^{SMALL}$")] == [SMALL]
    with pytest.raises(FormatError, match="no case matches"):
        committed.select("llama-a9")


def test_generate_and_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    words = ["fixtures", "--out", str(tmp_path), "--only", f"^{SMALL}$"]
    assert main(words) == 0
    assert validate(tmp_path / SMALL) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama-a1"]
    path = tmp_path / SMALL / "recording.json"
    before = path.read_bytes()
    assert b'"created": "2023-11-14T22:13:20Z"' in before
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    assert main(words) == 0
    assert path.read_bytes() == before, "the same bits are not written again"
    capsys.readouterr()
    assert main([*words, "--check"]) == 0
    assert "same" in capsys.readouterr().out
    path.write_text(path.read_text().replace('"max_abs_score":', '"max_abs_score":1'))
    assert main([*words, "--check"]) == 3
    assert "1 differ, the first model.layers.0.self_attn:sdpa#0" in capsys.readouterr().out
    shutil.rmtree(tmp_path / SMALL)
    assert main([*words, "--check"]) == 3
    assert "is missing" in capsys.readouterr().out


def test_weights_that_others_share_are_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fixtures", "--out", str(tmp_path), "--only"]
    assert main([*words, f"^{SMALL}$"]) == 0
    weights = tmp_path / "llama-a1" / "weights-f32.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    capsys.readouterr()
    assert main([*words, "^llama-a1/chunked-f32$"]) == 3
    assert "make all recordings of llama-a1 together" in capsys.readouterr().err
    assert weights.read_bytes() == data
    assert not (tmp_path / "llama-a1" / "chunked-f32").exists()


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fixtures", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(committed.CASES)
