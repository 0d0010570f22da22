"""Recordings of some forward calls of a run, and the keys of tensors in their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import ROOT
from recorded import asked

from python_inspector import record, tiny
from python_inspector.cli import inspector as cli
from python_inspector.errors import RecordError
from python_inspector.format.references import with_keys_of
from python_inspector.models.inputs import RunPlan, random_ids, run_model

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")
GIVEN: dict[str, Any] = {"name": "test/run", "command": "inspector record", "spread": 2}
GIVEN |= {"created": "2026-01-01T00:00:00Z", "bugs": False}
WITHOUT_TAPS: dict[str, Any] = {"bugs": True, "oracle": "leaves", "layers": (1,), "tokens": 3}


def run(
    out: Path, name: str = "llama-a1", *, tokens: int = 7, steps: int = 2, **options: Any
) -> Path:
    """A recording of three forward calls."""
    model: Any = tiny.build(name, torch.bfloat16, seed=1)
    ids = random_ids(1, tokens + steps, model.config.vocab_size, seed=1)
    plan = RunPlan(ids, tokens, steps, cache="dynamic")
    with record(model, *asked(out, run=plan.header(), **(GIVEN | options))):
        run_model(model, plan)
    return out


def checkpoints(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "recording.json").read_text())["checkpoints"]
    return found


def test_calls_that_are_left_out_are_made_and_counted(tmp_path: Path) -> None:
    """Ids and steps are those of the whole run, and so is every value."""
    whole = {c["id"]: c for c in checkpoints(run(tmp_path / "whole"))}
    some = checkpoints(run(tmp_path / "some", calls=(1,)))
    assert [c["id"] for c in some] == [id for id, c in whole.items() if c["step"] == 1]
    for checkpoint in some:
        outputs = whole[checkpoint["id"]]["outputs"]
        errors = {name: output["error"] for name, output in outputs.items()}
        assert {n: o["error"] for n, o in checkpoint["outputs"].items()} == errors


class Keep(torch.nn.Module):
    """Changes a state and gives no tensor."""

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[()]:
        state.add_(x)
        return ()


class Keeping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keep = Keep()
        self.last = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        self.keep(x, state)
        result: torch.Tensor = self.last(x)
        return result


def test_a_call_that_only_changes_a_state_is_counted(tmp_path: Path) -> None:
    state = torch.zeros(2, 4)
    model = Keeping().eval()
    with record(model, *asked(tmp_path / "x", calls=(1,), **GIVEN)):
        for value in (1.0, 2.0):
            model(torch.full((2, 4), value), state)
    ids = [c["id"] for c in checkpoints(tmp_path / "x")]
    assert ids == ["keep#1", "last#1", "model:forward#1"]


FIELDS = {"tensor", "delta", "chained_delta", "undecidable", "at", "values", "reference", "rms"}
"""That hold keys of tensors, among others."""


def strings(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """All of them in a JSON value, with the field that each is in."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from strings(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item, field)


def test_every_key_of_a_checkpoint_can_be_another(tmp_path: Path) -> None:
    samples = ROOT / "tests" / "data" / "recordings"
    folders = [samples / name for name in ("good", "good-sampled", "good-simulated")]
    folders.append(run(tmp_path / "chained", chained=True))
    folders.append(run(tmp_path / "without taps", "mixtral", **WITHOUT_TAPS))
    fields = set()
    for folder in folders:
        keys = json.loads((folder / "recording.json").read_text())["tensors"]
        for checkpoint in checkpoints(folder):
            fields |= {field for field, text in strings(checkpoint) if text in keys}
            other = with_keys_of(checkpoint, lambda key: f"other {key}")
            assert not [text for _, text in strings(other) if text in keys]
            assert with_keys_of(other, lambda key: key.removeprefix("other ")) == checkpoint
    assert fields >= FIELDS
    ill = {"inputs": {}, "weights": {}, "outputs": {"out": {"ill_conditioned": "t1"}}}
    assert "other t1" in str(with_keys_of(ill, lambda key: f"other {key}"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": (0,), "chained": True}, "chained goes from call to call"),
        ({"calls": (0, -1)}, "calls holds -1; give numbers from 0"),
        ({"calls": ("1",)}, "calls holds '1'; give numbers from 0"),
        ({"calls": (5, 1, 3)}, "calls holds 3, the model was called 3 times"),
        ({"calls": (3,)}, "calls holds 3, the model was called 3 times"),
    ],
)
def test_calls_that_cannot_be_recorded(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecordError, match=message):
        run(tmp_path / "x", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["2-1", "x", ""])
def test_what_is_no_list_of_calls(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["record", "--model", "tiny:llama", "--out", "x", "--calls", text])
    assert f"{text!r} is not a list of calls like 0,2 or 1-4" in capsys.readouterr().err
