"""What a verdict of verify() says, and what a function is passed, with the real harness."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy_kernels import rms_norm

import python_inspector
from python_inspector.errors import HarnessError

FIXTURE = Path(__file__).parents[2] / "fixtures" / "llama-a1" / "whole-f32"
NORM = r"^model\.norm#0$"


def test_a_verdict_says_what_it_rests_on(harness: Path) -> None:
    """Which roundings, which bug, and what would pass here: without a look at the figures."""

    def one_rounding(inputs: Any, weights: Any, params: Any) -> Any:
        cap = params["cap"]
        return cap * torch.tanh(inputs["x"].double() / cap)

    def no_cap(inputs: Any, weights: Any, params: Any) -> Any:
        return inputs["x"]

    recording = "gemma2-a4/decode-bf16"
    right = python_inspector.verify(one_rounding, recording, block="softcap", harness=harness)
    assert all(verdict.passed for verdict in right)
    assert any("rounds once" in str(verdict) for verdict in right)
    eager = python_inspector.verify(
        one_rounding, recording, block="softcap", contract="eager", harness=harness
    )
    assert any(verdict.status == "fail" for verdict in eager)
    wrong = python_inspector.verify(no_cap, recording, block="softcap", harness=harness)
    failed = [verdict for verdict in wrong if verdict.status == "fail"]
    assert failed
    for verdict in failed:
        assert verdict.known_bug == "softcap left out", verdict
        assert verdict.known_bug in verdict.reason
        assert "with the known bug" in verdict.diagnosis and verdict.diagnosis in str(verdict)
        assert verdict.passing_bugs is not None


def test_bugs_that_would_pass_stand_in_the_verdict(harness: Path) -> None:
    def norm(inputs: Any, weights: Any, params: Any) -> Any:
        x = inputs["x"].float()
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + params["eps"])
        return weights["weight"] * normed.to(inputs["x"].dtype)

    (verdict,) = python_inspector.verify(norm, "llama-a1/decode-bf16", NORM, harness=harness)
    assert verdict.passed
    assert verdict.passing_bugs == ("eps ten times as large",)
    assert "eps" in verdict.blind_to
    assert str(verdict) == (
        "model.norm#0 (rms_norm): pass\n  rounds as HF eager does (0 % differ)\n"
        "  blind to: eps\n  would pass here: eps ten times as large"
    )
    (bare,) = python_inspector.verify(
        norm, "llama-a1/decode-bf16", NORM, margins=False, harness=harness
    )
    assert bare.passing_bugs is None and "eps" in bare.blind_to


def test_a_cache_that_is_kept_elsewhere_is_not_judged(harness: Path) -> None:
    def cache(inputs: Any, weights: Any, params: Any) -> Any:
        def joined(new: str, before: str) -> torch.Tensor:
            parts = [inputs[before]] if before in inputs else []
            return torch.cat([*parts, inputs[new]], 2)

        return {"keys": joined("k", "keys_before"), "values": joined("v", "values_before")}

    fixture = FIXTURE.parent / "decode-bf16"
    verdicts = python_inspector.verify(cache, fixture, block="kv_cache", harness=harness)
    assert verdicts and all(verdict.passed for verdict in verdicts), verdicts
    assert all(v.not_judged == ("keys_after", "values_after") for v in verdicts)
    assert "not judged: keys_after, values_after" in str(verdicts[0])


def test_the_call_says_where_in_the_model_it_is(harness: Path) -> None:
    calls: list[Any] = []
    windows: list[Any] = []

    def function(inputs: Any, weights: Any, params: Any, call: Any) -> Any:
        calls.append(call)
        windows.append(params.get("window"))
        raise python_inspector.Unsupported("only looking")

    python_inspector.verify(function, "gemma2-a4/decode-f32", ":sdpa#", harness=harness)
    seen = {(call.step, call.position) for call in calls}
    assert seen == {(0, 0), (1, 11), (2, 12), (3, 13), (4, 14)}
    assert {call.layer for call in calls} == {0, 1, 2, 3}
    first = calls[0]
    assert (first.checkpoint, first.path, first.function, first.call, first.dtype) == (
        "model.layers.0.self_attn:sdpa#0", "model.layers.0.self_attn", "sdpa", 0, "f32",
    )  # fmt: skip
    assert first.config["model_type"] == "gemma2"
    assert {type(window) for window in windows} == {int, type(None)}


def test_whole_numbers_arrive_as_integers(harness: Path) -> None:
    """As the recording has them, except for numbers that are whole by chance."""
    by_chance = {"weight_offset", "beta_fast", "beta_slow"}
    checked = set()

    def same(given: Any, recorded: Any, where: str) -> None:
        for name, value in recorded.items():
            if isinstance(value, dict):
                same(given[name], value, where)
            elif name == "axes":  # recorded as 1.0
                assert all(type(axis) is int for axis in given[name]), where
            elif name not in by_chance:
                checked.add(name)
                types = [
                    [type(v) for v in (x if isinstance(x, list) else [x])]
                    for x in (given[name], value)
                ]
                assert types[0] == types[1], (where, name)

    def function(inputs: Any, weights: Any, params: Any, call: Any) -> Any:
        same(params, recorded[call.checkpoint]["params"], call.checkpoint)
        raise python_inspector.Unsupported("only looking")

    for name in (
        "llama-a1/whole-f32-components",
        "llama-a3-yarn/whole-f32",
        "zamba2-a8/decode-f32",
        "gemma2-a4/decode-bf16-static",
    ):
        folder = FIXTURE.parents[1] / name
        document = json.loads((folder / "recording.json").read_text())
        recorded = {entry["id"]: entry for entry in document["checkpoints"]}
        verdicts = python_inspector.verify(function, folder, harness=harness)
        assert {(v.status, v.reason) for v in verdicts} == {("unsupported", "only looking")}
    assert {"window", "axis", "chunk_size", "max_length", "query_offset"} <= checked


def test_what_cannot_be_judged_does_not_end_the_selection(harness: Path, tmp_path: Path) -> None:
    """A call without a native block and without simulated kernels, next to one that has both."""
    shutil.copytree(FIXTURE.parent, tmp_path / "copy")
    folder = tmp_path / "copy" / FIXTURE.name
    document = json.loads((folder / "recording.json").read_text())
    for entry in document["checkpoints"]:
        if entry["id"] == "model.layers.0.input_layernorm#0":
            entry["block"], entry["params"] = "module", {}
            del entry["outputs"]["out"]["spread"]
    (folder / "recording.json").write_text(json.dumps(document))

    def norm(inputs: Any, weights: Any, params: Any) -> Any:
        return rms_norm(inputs, weights, {"eps": 1e-5, **params})

    verdicts = python_inspector.verify(
        norm, folder, r"layers\.0\..*norm#0$", arrays="numpy", harness=harness
    )
    assert [v.status for v in verdicts] == ["unsupported", "pass"], verdicts
    assert "simulated" in verdicts[0].reason


def test_a_wrong_name_gets_the_nearest_right_one(harness: Path) -> None:
    def nothing(*_: Any) -> Any:
        raise AssertionError

    for words, recording, block in (
        (r"did you mean rms_norm\?", "llama-a1/whole-f32", "rmsnorm"),
        (r"did you mean llama-a1/whole-f32\?", "llama-a1/whole_f32x", "rms_norm"),
    ):
        with pytest.raises(HarnessError, match=words):
            python_inspector.verify(nothing, recording, block=block, harness=harness)
    with pytest.raises(HarnessError, match=r"did you mean model\.norm#0\?"):
        python_inspector.verify(nothing, FIXTURE, "model.norn#0", harness=harness)
