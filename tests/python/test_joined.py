"""Recordings of some calls of a run, and what they are joined to: the recording of all calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import ROOT
from test_writer import HEADER

from python_inspector import record, tiny
from python_inspector.errors import FormatError, RecordError
from python_inspector.format import spool
from python_inspector.format.joined import join
from python_inspector.format.references import with_keys_of
from python_inspector.format.writer import RecordingWriter
from python_inspector.models import dispatch
from python_inspector.models.inputs import RunPlan, random_ids, run_model
from python_inspector.recorder.recorder import Recorder
from python_inspector.recorder.resume import StretchIsOver

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")
GIVEN: dict[str, Any] = {"name": "test/run", "command": "inspector record", "spread": 2}
GIVEN |= {"created": "2026-01-01T00:00:00Z", "bugs": False}
WITHOUT_TAPS: dict[str, Any] = {"bugs": True, "oracle": "leaves", "layers": (1,), "tokens": 3}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama-a1", {}),
    "chunks": ("llama-a1", {"chunks": (4, 3), "steps": 1}),
    "rows": ("gemma2", {"rows": 4, "whole_layers": (1,)}),
    "zamba2": ("zamba2", {"tokens": 4}),
    "without taps": ("mixtral", WITHOUT_TAPS),
}
"""What is recorded: three forward calls each."""


def run(
    out: Path,
    name: str = "llama-a1",
    *,
    tokens: int = 7,
    steps: int = 2,
    chunks: tuple[int, ...] | None = None,
    others: Sequence[Path] = (),
    change: Callable[[torch.nn.Module], None] = lambda model: None,
    after: Callable[[Recorder], None] = lambda recorder: None,
    **options: Any,
) -> Path:
    """A recording, and recordings of later calls joined to it."""
    model: Any = tiny.build(name, torch.bfloat16, seed=1)
    change(model)
    ids = random_ids(1, tokens + steps, model.config.vocab_size, seed=1)

    def weight(name: str) -> torch.Tensor:
        ((_, values),) = dispatch.parameters(model, [name])
        return values

    plan = RunPlan(ids, tokens, steps, chunks, cache="dynamic")
    with record(model, out, run=plan.header(), **(GIVEN | options)) as recorder:
        with suppress(StretchIsOver):
            run_model(model, plan)
        after(recorder)
        for folder in others:
            join(recorder.writer, folder, weight)
    return out


def content(folder: Path) -> dict[str, Any]:
    """All of a recording, but for who made it and when."""
    recording = json.loads((folder / "recording.json").read_text())
    for name in ("created", "command"):
        del recording["provenance"][name]
    tensors = (folder / "tensors.safetensors").read_bytes()
    return {"json": json.dumps({**recording, "name": ""}, indent=1), "tensors": tensors}


def require_same(one: Path, other: Path) -> None:
    mine, theirs = content(one), content(other)
    assert mine["json"].splitlines() == theirs["json"].splitlines()
    assert mine["tensors"] == theirs["tensors"]


def checkpoints(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "recording.json").read_text())["checkpoints"]
    return found


@pytest.mark.parametrize(("name", "options"), RUNS.values(), ids=RUNS)
def test_a_recording_joined_to_the_first_calls_one_is_that_of_all_calls(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", name, **options)
    later = run(tmp_path / "later", name, calls=(1, 2), **options)
    joined = run(tmp_path / "joined", name, calls=(0,), others=[later], **options)
    require_same(joined, whole)


def test_several_recordings_are_joined_one_after_the_other(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    others = [run(tmp_path / f"{call}", calls=(call,)) for call in (1, 2)]
    require_same(run(tmp_path / "joined", calls=(0,), others=others), whole)


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
    with record(model, tmp_path / "x", calls=(1,), **GIVEN):
        for value in (1.0, 2.0):
            model(torch.full((2, 4), value), state)
    ids = [c["id"] for c in checkpoints(tmp_path / "x")]
    assert ids == ["keep#1", "last#1", "model:forward#1"]


def test_notes_and_warnings_come_along(tmp_path: Path) -> None:
    def say(recorder: Recorder) -> None:
        recorder.warn("all the ids are odd")
        recorder.writer.note(odd=True)

    later = run(tmp_path / "later", calls=(1, 2), after=say)
    joined = run(tmp_path / "joined", calls=(0,), others=[later, run(tmp_path / "0", calls=())])
    provenance = json.loads((joined / "recording.json").read_text())["provenance"]
    assert provenance["notes"]["odd"] is True
    assert provenance["warnings"].count("all the ids are odd") == 1


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


def with_large_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashed by threads, as tensors of a megabyte are."""
    monkeypatch.setattr(spool, "BESIDE", 1)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["llama", "rows", "zamba2"])
def test_large_payloads_have_the_keys_that_they_would_have(
    name: str, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_large_payloads(monkeypatch)
    if in_place:
        monkeypatch.setattr(spool, "IN_PLACE", 1)
        monkeypatch.setattr(spool, "HEADER_ROOM", 1 << 17)
    model, options = RUNS[name]
    whole = run(tmp_path / "whole", model, **options)
    later = run(tmp_path / "later", model, calls=(1, 2), **options)
    require_same(run(tmp_path / "joined", model, calls=(0,), others=[later], **options), whole)
    tensors = json.loads((whole / "recording.json").read_text())["tensors"]
    keys = [int(key[1:]) for key in tensors if key.startswith("t")]
    assert sorted(keys) == list(range(len(keys)))
    assert any("payload_of" in entry for entry in tensors.values())


def test_a_payload_of_another_process_is_taken_in_another_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tensor here, and of one there that itself has the payload of another."""
    with_large_payloads(monkeypatch)
    x, y = torch.arange(24.0), torch.arange(12.0)
    later = [y, x.reshape(4, 6), y.reshape(3, 4), x.reshape(6, 4), x]

    def write(out: Path, tensors: list[torch.Tensor], others: Sequence[Path] = ()) -> Path:
        with RecordingWriter(out) as writer:
            for t in tensors:
                writer.tensor(t)
            for folder in others:
                join(writer, folder, lambda name: torch.empty(0))
            writer.commit(HEADER | {"provenance": {"created": "", "command": ""}})
        return out

    other = write(tmp_path / "later", later)
    joined = write(tmp_path / "joined", [x], [other])
    require_same(joined, write(tmp_path / "whole", [x, *later]))
    table = json.loads((joined / "recording.json").read_text())["tensors"]
    owners = {key: e["payload_of"] for key, e in table.items() if "payload_of" in e}
    assert owners == {"t2": "t0", "t3": "t1", "t4": "t0"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": (0,), "chained": True}, "chained goes from call to call"),
        ({"calls": (0, -1)}, "calls holds -1; give numbers from 0"),
        ({"calls": ("1",)}, "calls holds '1'; give numbers from 0"),
        ({"calls": (5, 1, 3)}, "calls holds 3, the model was called 3 times"),
        ({"calls": (3,), "resumable": True}, "calls holds 3, the model was called 3 times"),
    ],
)
def test_calls_that_cannot_be_recorded(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecordError, match=message):
        run(tmp_path / "x", **options)
    assert list(tmp_path.iterdir()) == []


def twice_the_weight(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.up_proj.weight").mul_(2)


def test_a_recording_of_other_weights_is_not_joined(tmp_path: Path) -> None:
    later = run(tmp_path / "later", calls=(1,), change=twice_the_weight)
    message = r"weight model.layers.0.mlp.up_proj.weight has SHA-256 \w{12} here and \w{12} in the"
    with pytest.raises(FormatError, match=message):
        run(tmp_path / "x", calls=(0,), others=[later])
    assert list(tmp_path.iterdir()) == [later]


def test_a_recording_of_the_same_calls_is_not_joined(tmp_path: Path) -> None:
    later = run(tmp_path / "later", calls=(0, 1))
    with pytest.raises(FormatError, match=r"model\.embed_tokens#0 is already recorded"):
        run(tmp_path / "x", calls=(0,), others=[later])
    assert list(tmp_path.iterdir()) == [later]
