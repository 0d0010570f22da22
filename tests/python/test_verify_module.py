"""verify_module(), capture(), the transforms and the proposals: for modules that are not ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import python_inspector
from python_inspector.cli.inspector import main
from python_inspector.engines import layouts
from python_inspector.engines.capture import capture
from python_inspector.engines.mapping import propose
from python_inspector.engines.steps import RecordedRun
from python_inspector.engines.weights import transformers_model
from python_inspector.errors import FormatError
from python_inspector.format.named_recordings import recording_folder

RECORDING = "llama-a1/whole-f32"
HEADS, KV_HEADS, SIZE, CHANNELS = 4, 2, 8, 32


class FusedAttention(torch.nn.Module):
    """One projection for q, k and v; rotary embedding of neighbours; heads behind tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(CHANNELS, (HEADS + 2 * KV_HEADS) * SIZE, bias=False)
        self.proj = torch.nn.Linear(HEADS * SIZE, CHANNELS, bias=False)
        self.shift = 0

    def turned(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        cos, sin = (t[:, :, None, : SIZE // 2].roll(self.shift, 1) for t in (cos, sin))
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        cuts = [HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE]
        q, k, v = (t.unflatten(-1, (-1, SIZE)) for t in self.qkv(x).split(cuts, -1))
        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(2))


NAMES = {
    "qkv.weight": ["q_proj.weight", "k_proj.weight", "v_proj.weight"],
    "proj.weight": "o_proj.weight",
}


def attention(module: Any, **options: Any) -> list[python_inspector.Verdict]:
    def call(module: Any, inputs: Any, params: Any) -> Any:
        return module(inputs["hidden"], inputs["cos"], inputs["sin"])

    return python_inspector.verify_module(
        module, RECORDING, "attention", names=NAMES, call=call, **options
    )


def test_a_fused_interleaved_attention_passes() -> None:
    verdicts = attention(FusedAttention(), rope="interleaved")
    assert verdicts and all(v.passed for v in verdicts), "\n".join(map(str, verdicts))


def test_without_the_transform_or_with_a_fault_it_fails() -> None:
    assert not any(v.passed for v in attention(FusedAttention()))
    module = FusedAttention()
    module.shift = 1
    assert not any(v.passed for v in attention(module, rope="interleaved"))


@pytest.mark.parametrize("layout", ["btnh", "bnth", "tbnh"])
@pytest.mark.parametrize("rope", ["half", "interleaved"])
def test_kernels_of_any_layout(layout: str, rope: str) -> None:
    """Scores do not depend on the order of a head's elements, outputs do."""

    def call(_module: Any, inputs: Any, params: Any) -> Any:
        there = layouts.axes(layout, "bnth")
        q, k, v = (there(inputs[name]) for name in "qkv")
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=params["scale"], enable_gqa=True
        )
        return layouts.axes("bnth", layout)(out)

    verdicts = python_inspector.verify_module(
        torch.nn.Identity(), RECORDING, "sdpa", names={}, call=call, layout=layout, rope=rope
    )
    assert verdicts and all(v.passed for v in verdicts), "\n".join(map(str, verdicts))


def test_a_fused_mlp_and_a_weight_that_is_not_there() -> None:
    class FusedMlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_up = torch.nn.Linear(CHANNELS, 96, bias=False)
            self.down = torch.nn.Linear(48, CHANNELS, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate, up = self.gate_up(x).chunk(2, -1)
            return self.down(torch.nn.functional.silu(gate) * up)

    names: dict[str, Any] = {
        "gate_up.weight": ["gate_proj.weight", "up_proj.weight"], "down.weight": "down_proj.weight"
    }  # fmt: skip
    verdicts = python_inspector.verify_module(FusedMlp(), RECORDING, "glu_mlp", names=names)
    assert verdicts and all(v.passed for v in verdicts), "\n".join(map(str, verdicts))
    names["gate_up.weight"] = ["up_proj.weight", "gate_proj.weight"]
    verdicts = python_inspector.verify_module(FusedMlp(), RECORDING, "glu_mlp", names=names)
    assert not any(v.passed for v in verdicts)
    names["gate_up.weight"] = "gate.weight"
    verdicts = python_inspector.verify_module(FusedMlp(), RECORDING, "glu_mlp", names=names)
    assert "has no weight gate.weight" in verdicts[0].reason


def test_transforms_are_each_others_inverse() -> None:
    x = np.arange(2 * 3 * 4 * 8).reshape(2, 3, 4, 8)
    for array in (x, torch.from_numpy(x)):
        there = layouts.then(layouts.axes("btnh", "bnth"), layouts.axes("bnth", "btnh"))
        assert (there(array) == array).all()
        pairs = layouts.then(layouts.half_from_interleaved(8), layouts.interleaved_from_half(8))
        assert (pairs(array) == array).all()
        assert layouts.merged()(layouts.heads(2)(array)).shape == x.shape
    assert layouts.half_from_interleaved(8)(np.arange(8)).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert layouts.part([3, 2, 1], 1)(np.arange(6)).tolist() == [3, 4]
    assert layouts.grouped_part(4, 2, 0)(np.arange(8)).tolist() == [0, 1, 4, 5]
    assert layouts.grouped_part(4, 2, 2)(np.arange(8)).tolist() == [3, 7]
    assert layouts.axes("bth", "bnth")(np.zeros((2, 3, 4))).shape == (2, 1, 3, 4)
    for wrong, words in [
        (lambda: layouts.axes("bnth", "bth")(np.zeros((2, 3, 4, 5))), "loses elements"),
        (lambda: layouts.part([3, 2], 0)(np.zeros(6)), "is not the 5"),
        (lambda: layouts.half_from_interleaved(7), "has no pairs"),
        (lambda: layouts.heads(5)(np.zeros((2, 8))), "no multiple of 5 heads"),
    ]:
        with pytest.raises(ValueError, match=words):
            wrong()


def test_hooks_are_taken_off_and_a_wrong_name_is_told(tmp_path: Path) -> None:
    ids = torch.arange(3, 8)[None]
    model = transformers_model("llama-a1/decode-f32").to(ids.device)
    with capture(model, {"model.layers.{}": "model.layers.{}", "lm_head": ("logits", lambda x: -x)}
                 ) as taken:  # fmt: skip
        logits = model(ids).logits
    assert torch.equal(taken["logits"], -logits)
    assert sorted(taken) == ["logits", *(f"model.layers.{i}" for i in range(3))]
    model(ids)
    assert len(taken.calls) == 4, "a hook was left behind"
    with (
        pytest.raises(KeyError, match="no module transformer"),
        capture(model, {"transformer": ""}),
    ):
        pass


def test_what_was_captured_is_a_file_for_the_harness(tmp_path: Path) -> None:
    import subprocess

    from python_inspector.native import find_harness

    recording = "llama-a1/decode-f32"
    model, run = transformers_model(recording), RecordedRun(recording)
    names = {"model.layers.{}": "model.layers.{}", "lm_head": "lm_head:logits"}
    with capture(model, names) as taken, torch.no_grad():
        cache = None
        for ids in run.ids:
            out = model(torch.from_numpy(ids), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
    taken.save(tmp_path / "captured.safetensors")
    command = [find_harness(), "judge", "--mode", "chained", recording]
    done = subprocess.run(
        [*map(str, command), str(tmp_path / "captured.safetensors")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "model.layers.2#" in done.stdout


def test_a_mapping_is_proposed() -> None:
    """Of modules and weights of another shape, in an engine with one wrong layer."""
    recording = "llama-a1/decode-f32"
    model = transformers_model(recording)
    modules, weights = propose(model, recording, lambda ids: model(ids, use_cache=False))
    found = {each.recorded: each for each in modules}
    assert found["model.layers.1"].theirs == "model.layers.1"
    assert found["model.layers.1.mlp"].theirs == "model.layers.1.mlp"
    assert found["lm_head:logits"].theirs == "lm_head"
    assert all(each.error < 1e-6 for each in modules)
    own = dict(model.named_parameters())
    assert {(each.theirs, each.recorded) for each in weights} >= {(name, name) for name in own}

    class Renamed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            q, k = (own[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qk")
            order = layouts.interleaved_from_half(SIZE, axis=0)
            self.fused = torch.nn.Parameter(torch.cat([order(q), order(k)]))
            self.down = torch.nn.Parameter(own["model.layers.0.mlp.down_proj.weight"].T)

        def forward(self, x: Any) -> Any:
            return x

    engine = Renamed()
    _, weights = propose(engine, recording, engine)
    assert {(each.theirs, each.recorded.split(".")[-2], each.transform) for each in weights} == {
        ("fused", "q_proj", "rows 0-31, interleaved_from_half"),
        ("fused", "k_proj", "rows 32-47, interleaved_from_half"),
        ("down", "down_proj", "transposed"),
    }


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        ("t9999", "tensor t9999 is not in the table"),
        ("itself", "has no payload of its own"),
        ("another", r"shape: .*, that of t\d+ with its payload is"),
        ("t9998", "that of t9998 with its payload is"),
        ("a weight", r"w\d+ is in weights, not in tensors"),
        (None, "tensor None is not in the table"),
        (["t0"], "is not in the table"),
    ],
)
@pytest.mark.parametrize("reader", ["steps", "map"])
def test_ids_with_a_payload_that_is_not_theirs_are_refused(
    owner: Any, reason: str, reader: str, tmp_path: Path
) -> None:
    folder, source = tmp_path / "r", recording_folder(Path("llama-a1/decode-f32"))
    shutil.copytree(source, folder)
    shutil.copy(source.parent / "weights-f32.safetensors", tmp_path)
    document = json.loads((folder / "recording.json").read_text())
    table = document["tensors"]
    first = next(c for c in document["checkpoints"] if c["block"] == "embedding")
    key = first["inputs"]["ids"]["tensor"]
    ids = table[key]
    table["t9998"] = ids | {"sha256": "0" * 64}
    others = (k for k, e in table.items() if e["dtype"] == ids["dtype"] and e.get("file"))
    named = {
        "itself": key,
        "another": next(k for k in others if table[k]["shape"] != ids["shape"]),
        "a weight": next(k for k, entry in table.items() if entry.get("file") == "weights"),
    }
    ids["payload_of"] = named.get(owner, owner) if isinstance(owner, str) else owner
    (folder / "recording.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=rf"recording\.json: tensors\.{key}\..*{reason}"):
        if reader == "steps":
            RecordedRun(folder)
        else:
            propose(torch.nn.Linear(1, 1), folder, lambda ids: ids)


def test_inspector_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "engine.py"
    script.write_text(
        "from python_inspector.engines.weights import transformers_model\n"
        "def load():\n"
        "    model = transformers_model('llama-a1/decode-f32')\n"
        "    return model, lambda ids: model(ids, use_cache=False)\n"
    )
    assert main(["map", f"{script}:load", "llama-a1/decode-f32"]) == 0
    said = capsys.readouterr().out
    assert "model.layers.0.mlp" in said and "weights: theirs" in said
    assert main(["map", f"{script}:lod", "llama-a1/decode-f32"]) == 2
    assert "has no lod" in capsys.readouterr().err
