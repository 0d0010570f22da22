"""reports model: alternating with transformers, and what is left where that ends early."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from harness_runs import harness
from torch._dynamo.testing import CompileCounter

from python_inspector import tiny
from reports.__main__ import main
from reports.speed import rival_model
from reports.speed.rival_model import Plan
from reports.speed.transformers_model import TransformersModel
from reports.speed.work import Speed, Work
from reports.speed.worker import Worker


class Patient:
    """What a Worker runs here; only its process sees what it does."""

    def __init__(self, name: str) -> None:
        self.name = name

    def greet(self, other: str) -> str:
        return f"{self.name} and {other}"

    def refuse(self) -> None:
        raise ValueError("two\nlines")

    def sleep(self) -> None:
        time.sleep(600)

    def die(self) -> None:
        os._exit(7)


def test_a_worker_answers_and_outlives_an_error() -> None:
    with Worker(Patient, "ours") as worker:
        assert worker.call("greet", "theirs") == "ours and theirs"
        with pytest.raises(RuntimeError, match="ValueError: two lines"):
            worker.call("refuse")
        assert worker.call("greet", "x") == "ours and x"
        with pytest.raises(RuntimeError, match="its process ended with 7"):
            worker.call("die")
        with pytest.raises(RuntimeError, match="its process ended with 7"):
            worker.call("greet", "nobody")


def test_a_worker_that_takes_too_long_is_ended() -> None:
    with Worker(Patient, "ours") as worker:
        with pytest.raises(TimeoutError):
            worker.call("sleep", seconds=0.1)
        with pytest.raises(RuntimeError, match="its process ended with -9"):
            worker.call("greet", "nobody")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["llama-a1", "zamba2-a6"])
def test_a_whole_model_is_measured_in_turn(name: str) -> None:
    _, model = tiny.find(name)
    config = {"model_type": model.model_type, **model.config}
    plan = Plan(Work(tokens=9, steps=3, dtype="f32"), rounds=2)
    (line,) = rival_model.compare(name, config, Path(harness()), plan)
    assert line["gap"] is None
    assert len(line["ours"]) == len(line["theirs"]) == 2
    assert all(speed["decode"] > 0 for speed in (*line["ours"], *line["theirs"]))
    pairs = zip(line["ours"], line["theirs"], strict=True)
    ratios = sorted(theirs["decode"] / ours["decode"] for ours, theirs in pairs)
    assert line["decode_ratio"] == pytest.approx(sum(ratios) / 2)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["llama-a1", "gemma2-a4"])
def test_a_step_is_compiled_once_and_gives_the_logits_of_a_prompt(name: str) -> None:
    _, tiny_model = tiny.find(name)
    config = {"model_type": tiny_model.model_type, **tiny_model.config, "num_hidden_layers": 2}
    config.pop("layer_types", None)
    rival = TransformersModel(config, Work(tokens=9, steps=2, dtype="f32"))
    counter = CompileCounter()
    rival.compiled = torch.compile(rival.model, backend=counter, fullgraph=True)
    assert rival.measure("eager").decode > 0 and counter.frame_count == 0
    for _ in range(2):
        assert rival.measure("compile").decode > 0
    assert counter.frame_count == 1
    ids, cache = rival.tokens(11), rival.static_cache()
    with torch.inference_mode():
        rival.model(input_ids=ids[:, :10], past_key_values=cache)
        step = rival.compiled(input_ids=ids[:, 10:], past_key_values=cache, logits_to_keep=1)
        whole = rival.model(input_ids=ids, logits_to_keep=1)
    torch.testing.assert_close(step.logits, whole.logits)


class SlowToCompile:
    """In place of a Worker: a compilation that does not end."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> SlowToCompile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, method: str, *values: object, seconds: float | None = None) -> Speed | None:
        if values == ("compile",):
            raise TimeoutError
        return Speed(0.3, 0.02) if method == "measure" else None


def model_command(out: Path, *options: str) -> int:
    return main(
        [
            "model",
            "--shape",
            "llama3-8b",
            "--rounds",
            "1",
            "--compiled",
            "--out",
            str(out),
            *options,
        ]
    )


def test_what_takes_too_long_leaves_its_reason_beside_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rival_model, "Worker", SlowToCompile)
    monkeypatch.setattr(rival_model, "measure_harness", lambda *_: Speed(0.1, 0.01))
    out = tmp_path / "model.jsonl"
    assert model_command(out, "--timeout", "240", "--device", "cuda") == 0
    eager, compiled = [json.loads(line) for line in out.read_text().splitlines()]
    assert (eager["way"], eager["decode_ratio"], eager["gap"]) == ("eager", 2, None)
    assert eager["device"] == "cuda:0"
    assert (compiled["theirs"], compiled["decode_ratio"]) == ([], None)
    assert compiled["gap"] == "not done within 240 s"
    assert capsys.readouterr().out.splitlines()[-1] == (
        "ratio   prefill 3.00 (eager)   decode 2.00 (eager)   gap: compile: not done within 240 s"
    )


def test_a_model_without_any_figure_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.jsonl"
    assert model_command(out, "--timeout", "1e-9") == 1
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["gap"] for line in lines] == ["not done within 1e-09 s"] * 2
    assert "gap: eager: not done within 1e-09 s   gap: compile" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--tokens", "--steps", "--rounds"])
def test_nothing_cannot_be_measured(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        model_command(tmp_path / "model.jsonl", option, "0")
    assert ended.value.code == 2
    assert f"{option} 0: needs at least 1" in capsys.readouterr().err
