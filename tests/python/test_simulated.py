"""What a recording says of simulated kernels: rounded models, spreads, traces, stability."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import ids, recorded, run
from transformers import DynamicCache

from python_inspector import WrongError, check, draw, record, tiny
from python_inspector.errors import RecordWarning
from python_inspector.format.show import show
from python_inspector.format.validate import validate
from python_inspector.taps.components import Component
from python_inspector.taps.options import Proof, What
from python_inspector.trace.conforms import report, rows
from python_inspector.trace.replay import run_rounded
from python_inspector.trace.reruns import instability
from python_inspector.trace.simulation import Normals, Simulation
from python_inspector.trace.spread import model_of

RUNS = 4
CORPUS = Path(__file__).parents[1] / "data" / "recordings"


def outputs(recording: Any) -> dict[str, dict[str, Any]]:
    return {
        f"{c['id']} {name}": output | {"block": c["block"], "trace": c.get("trace")}
        for c in recording.json["checkpoints"]
        for name, output in c["outputs"].items()
    }


@pytest.mark.parametrize("name", ["llama-a1", "gemma2-a4", "zamba2-a6"])
def test_the_reference_has_the_bits_of_its_rounded_model(name: str, tmp_path: Path) -> None:
    """Within what simulated kernels forecast; gelu's tails in Gemma2 are some of it."""
    recording = recorded(tmp_path / "r", name, "whole", "bf16", spread=RUNS)
    assert validate(tmp_path / "r") == []
    found = list(rows(tmp_path / "r"))
    assert len(found) > 40
    assert not [row for row in found if row.beyond]
    leaves = [row for row in found if row.block in ("linear", "rms_norm", "rotary", "softmax")]
    assert sum(row.differ for row in leaves) < 1e-3 * sum(row.elements for row in leaves)
    assert f"{len(leaves)}" and len(list(report(found))) > 5
    judged = [o for o in outputs(recording).values() if "spread" in o]
    assert all(o["spread"]["runs"] == RUNS for o in judged)
    models = [o["model"] for o in judged if o.get("model")]  # none where torch's sums here are m's
    tensors = recording.json["tensors"]
    assert {tensors[model["at"]]["dtype"] for model in models} <= {"i32"}


def test_the_rounded_model_is_stored_where_it_has_other_bits() -> None:
    r = torch.tensor([[1.0, -2.0], [math.nan, 0.0]], dtype=torch.bfloat16)
    m = torch.tensor([[1.0, -3.0], [math.nan, -0.0]], dtype=torch.bfloat16)
    found = model_of(r, m)
    assert found is not None
    at, values = found
    assert at.dtype == torch.int32 and at.tolist() == [1, 3]
    assert values.tolist() == [-3.0, -0.0]
    assert model_of(r, r) is None


def test_outputs_in_float32_have_a_spread_and_no_model(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "llama-a1", "padded-decode", "f32", spread=RUNS)
    assert validate(tmp_path / "r") == []
    found = outputs(recording)
    assert not any("model" in o for o in found.values())
    attention = [o for o in found.values() if o["block"] == "sdpa"]
    assert any("valid" in o for o in attention)
    for output in attention:
        mean, deviation, largest = output["spread"]["tensor"]
        assert 0 < deviation < mean <= largest < 1e-6
        assert {"token", "token x head", "channel", "tile"} <= output["spread"].keys()
        assert not {"bits", "sketch"} & output["spread"].keys()


def test_what_only_moves_has_neither_trace_nor_spread(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "llama-a1", "decode", "bf16", spread=RUNS)
    for key, output in outputs(recording).items():
        exact = output["block"] in ("kv_cache", "causal_mask", "repeat_kv", "rotary_frequencies")
        exact |= output["block"] == "embedding"
        if not exact:
            assert output["trace"] in recording.json["traces"], key
            assert "spread" in output, key
        elif output["block"] != "rotary_frequencies":
            assert not {"spread", "model"} & output.keys(), key
            assert output["trace"] is None, key


def test_traces_name_rounding_points_and_are_shared(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "llama-a1", "whole", "bf16", spread=RUNS)
    norms = {c["trace"] for c in recording.of("rms_norm")}
    assert len(norms) == 1
    listed = recording.json["traces"][norms.pop()]["operations"]
    assert [(e["op"], e["stores"], e.get("terms")) for e in listed] == [
        ("pow", "f32", None), ("mean", "f32", 32), ("add", "f32", None), ("rsqrt", "f32", None),
        ("mul", "f32", None), ("_to_copy", "bf16", None), ("mul", "bf16", None),
    ]  # fmt: skip


def test_without_simulated_kernels_nothing_is_said_of_them(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "llama-a1", "whole", "bf16", spread=0)
    assert recording.json["traces"] == {}
    assert recording.json["provenance"]["run"]["spread"] == 0
    assert not any({"spread", "model"} & o.keys() for o in outputs(recording).values())
    assert not any("trace" in c for c in recording.json["checkpoints"])


def test_recordings_with_and_without_have_the_same_bits(tmp_path: Path) -> None:
    def stored(spread: int) -> list[Any]:
        recording = recorded(
            tmp_path / str(spread), "gemma2-a4", "decode", "bf16", spread=spread, layers=(0,)
        )
        hashes = {key: entry["sha256"] for key, entry in recording.json["tensors"].items()}
        return [
            (c["id"], n, hashes[o["tensor"]], o["delta"] and hashes[o["delta"]], o["error"])
            for c in recording.json["checkpoints"]
            for n, o in c["outputs"].items()
        ]

    assert stored(0) == stored(RUNS)


def test_recording_twice_gives_the_same_file(tmp_path: Path) -> None:
    def text(name: str) -> str:
        recording = recorded(tmp_path / name, "llama-a1", "decode", "bf16", spread=RUNS)
        del recording.json["name"]
        for field in ("created", "command"):
            del recording.json["provenance"][field]
        return json.dumps(recording.json)

    assert text("first") == text("second")


def test_a_run_on_a_cache_leaves_the_cache_alone(tmp_path: Path) -> None:
    model = tiny.build("llama-a1", torch.bfloat16)
    x, cache = ids(model), DynamicCache(config=model.config)
    with torch.no_grad():
        model(x[:, :8], past_key_values=cache)
    attention = model.model.layers[0].self_attn
    hidden, before = torch.randn(2, 1, 32).bfloat16(), cache.layers[0].keys.clone()
    table = model.model.rotary_emb(hidden, torch.tensor([[8]]))
    simulation = Simulation(2, Normals("x"))
    call = {"position_embeddings": table, "attention_mask": None, "past_key_values": cache}
    rerun = run_rounded(simulation)(attention.forward, (hidden,), call, [attention])
    assert torch.equal(cache.layers[0].keys, before)
    twin = rerun.twin(cache).layers[0].keys
    stack = simulation.stacks.of(twin)
    assert twin.shape[2] == 9
    assert stack is not None
    assert torch.equal(stack[:, :, :, :8], before.expand(3, *before.shape))


class Restless(torch.nn.Linear):
    """Gives something else at its first call."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        return super().forward(x) * (1 + 1e-3 * (type(self).calls == 1))


def test_a_reference_that_is_not_stable_is_marked(tmp_path: Path) -> None:
    model = tiny.build("llama-a1")
    mlp = model.model.layers[1].mlp
    restless = Restless(*mlp.up_proj.weight.shape[::-1], bias=False)
    restless.load_state_dict(mlp.up_proj.state_dict())
    mlp.up_proj = restless.eval()
    text = r"layers\.1\.mlp.*has other bits when the call is run again"
    with (
        pytest.warns(RecordWarning, match=text),
        record(model, tmp_path / "r", What(blocks=["glu_mlp"]), Proof(spread=2)),
    ):
        run(model, "whole")
    recording = json.loads((tmp_path / "r" / "recording.json").read_text())
    marks = {c["path"]: c["outputs"]["out"].get("unstable") for c in recording["checkpoints"]}
    assert marks["model.layers.0.mlp"] is None
    assert 1e-5 < marks["model.layers.1.mlp"] < 2e-3
    assert validate(tmp_path / "r") == []


def test_show_says_what_simulated_kernels_show() -> None:
    printed = show(CORPUS / "good-simulated", "m#0")
    assert "other bits than the reference in 2 elements" in printed
    assert "spread     bits         0.667 +- 1.1, at most 2" in printed
    assert "truncated  tensor" in printed
    assert "unstable         by 1.00e-03" in printed


def test_instability_is_a_relative_error_over_all_elements() -> None:
    r = torch.tensor([3.0, 4.0, torch.nan, torch.inf])
    assert instability(r, r.clone()) == 0
    assert instability(torch.tensor([0.0, 5.0]), torch.tensor([-0.0, 5.0])) == 0
    assert instability(r, torch.tensor([3.0, 4.5, torch.nan, torch.inf])) == pytest.approx(0.1)
    assert instability(r, torch.tensor([3.0, torch.nan, torch.nan, torch.inf])) == float("inf")


@pytest.mark.parametrize("name", ["div_", "__itruediv__"])
def test_an_operation_in_place_keeps_what_it_was_given(name: str) -> None:
    function = getattr(torch.Tensor, name)
    x = torch.ones(3)
    component = Component(_named(function, name), (x, 2.0), {})
    function(x, 2.0)
    assert component.args[0].tolist() == [1, 1, 1]


def _named(function: Any, name: str) -> Any:
    def wrapped(*args: Any) -> Any:
        return function(*args)

    wrapped.__name__ = name
    return wrapped


@pytest.mark.parametrize("dimensions", [2, 3])
def test_a_mean_of_a_window_is_a_sum(dimensions: int) -> None:
    """Of three numbers that cancel almost, a right kernel's is off by what they are."""
    kind = (torch.nn.AvgPool2d, torch.nn.AvgPool3d)[dimensions - 2]
    x = draw((2, 16, *[64, 16][dimensions - 2 :][:1] * dimensions), kinds=["sparse"])
    assert check(kind(3, 2, 1), like=kind(3, 2, 1), inputs=(x,), explain=False).passed
    with pytest.raises(WrongError):
        check(kind(3, 2, 1, False, False), like=kind(3, 2, 1), inputs=(x,), explain=False)
