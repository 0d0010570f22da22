"""The chained oracle: one float64 run of the whole model over all calls of a recording."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
import zamba2_reference
from recorded import DTYPES, Recording, ids, recorded, run
from transformers import DynamicCache, StaticCache

from python_inspector import record, tiny
from python_inspector.cli.inspector import main
from python_inspector.errors import RecordError
from python_inspector.format.recording import chained_outputs
from python_inspector.format.validate import validate
from python_inspector.models.inputs import RunPlan, run_model
from python_inspector.taps.options import Proof, What
from python_inspector.trace.replay import run_lifted

FIXTURES = Path(__file__).parents[2] / "fixtures"
LAYERS = ("decoder_layer", "mamba_layer", "hybrid_layer")
WHOLE_MODELS = sorted(
    path.parent
    for path in FIXTURES.glob("*/*/recording.json")
    if '"chained_delta"' in path.read_text()
)


def chained(recording: Recording, checkpoint: dict[str, Any], name: str = "out") -> torch.Tensor:
    """The chained oracle in float64, to the rounding of its difference."""
    return recording.tensor(checkpoint["outputs"][name]["tensor"]) + delta(
        recording, checkpoint, name
    )


def delta(recording: Recording, checkpoint: dict[str, Any], name: str = "out") -> torch.Tensor:
    output = checkpoint["outputs"][name]
    key = output["chained_delta"]
    return recording.tensor(output["tensor"]) * 0 if key is None else recording.tensor(key)


def assert_same(
    ours: torch.Tensor, recording: Recording, checkpoint: dict[str, Any], name: str = "out"
) -> None:
    """The difference is stored in float32: it has an error of 2^-24 of itself.

    Padding is left out: it sees every token of its own call, however many there are.
    """
    off = (ours - chained(recording, checkpoint, name)).abs()
    limit = 1e-12 * ours.abs().max() + 2.0**-24 * delta(recording, checkpoint, name).abs()
    pads = recording.json["provenance"]["run"]["left_pad"] or []
    for row, pad in enumerate(pads if name != "state_after" else []):
        tokens = off[row] if name == "out" else off[row].transpose(0, 1)
        tokens[: pad if checkpoint["step"] == 0 or name != "out" else 0] = 0
    assert bool((off <= limit).all()), f"{checkpoint['id']} {name}: {float(off.max()):.2e} off"


def all_at_once(recording: Recording) -> dict[str, torch.Tensor]:
    """Outputs of layers, final norm and head by path, of all tokens in one pass without a cache.

    From the formulas of reference.py, which know neither transformers nor its caches.
    """
    layers = {c["path"]: c for c in reversed(recording.checkpoints) if c["block"] in LAYERS}
    blocks = reference.BLOCKS
    if recording.json["provenance"]["model_type"] == "zamba2":
        blocks = blocks | zamba2_reference.BLOCKS
    table = recording.of("rotary_table")
    embeddings = recording.of("embedding")

    def joined(checkpoints: list[dict[str, Any]], name: str) -> torch.Tensor:
        return torch.cat([recording.inputs(c)[name] for c in checkpoints], 1)

    given = {"ids": joined(embeddings, "ids")}
    head = embeddings[0]
    x = blocks["embedding"](given, recording.weights(head), head["params"])["out"]
    extra: dict[str, torch.Tensor] = {"original": x}
    if table:
        positions = {**recording.inputs(table[0]), "positions": joined(table, "positions")}
        extra |= blocks["rotary_table"](positions, {}, table[0]["params"])
    pads = recording.json["provenance"]["run"]["left_pad"]
    if pads is not None:
        valid = torch.arange(x.shape[1])[None] >= torch.tensor(pads)[:, None]
        extra |= {"key_valid": valid, "token_valid": valid}
    out = {head["path"]: x}
    for path, checkpoint in sorted(layers.items(), key=lambda item: _depth(item[0])):
        if path.endswith("mamba_decoder"):
            continue
        params = copy.deepcopy(checkpoint["params"])
        if "attention" in params:
            params["attention"] |= {"causal": True, "query_offset": 0, "key_offset": 0}
            params["attention"] |= {"cache": None, "fully_masked": "uniform"}
        layer = blocks[checkpoint["block"]]
        x = layer(extra | {"hidden": x}, recording.weights(checkpoint), params)["out"]
        out[path] = x
    norm = next(c for c in recording.of("rms_norm") if chained_outputs("rms_norm", c["path"]))
    x = blocks["rms_norm"]({"x": x}, recording.weights(norm), norm["params"])["out"]
    logits = recording.of("lm_head")[0]
    params = logits["params"] | {"logits_to_keep": 0}
    y = blocks["lm_head"]({"hidden": x}, recording.weights(logits), params)["out"]
    return out | {norm["path"]: x, logits["path"]: y}


def _depth(path: str) -> int:
    return next((int(part) for part in path.split(".") if part.isdigit()), -1)


@pytest.mark.parametrize("folder", WHOLE_MODELS, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_step_by_step_it_is_the_model_in_one_pass(folder: Path) -> None:
    recording = Recording(folder)
    if recording.json["config"].get("rope_parameters", {}).get("rope_type") in STATEFUL:
        pytest.skip("keys of earlier calls were rotated at other frequencies")
    done = dict.fromkeys(outputs := all_at_once(recording), 0)
    for checkpoint in recording.checkpoints:
        path = checkpoint["path"]
        if path not in done or "chained_delta" not in checkpoint["outputs"].get("out", {}):
            continue
        tokens = recording.raw(checkpoint["outputs"]["out"]["tensor"]).shape[1]
        if path == "lm_head" and checkpoint["params"]["logits_to_keep"]:
            done[path] = outputs[_embedding_path(recording)].shape[1] - tokens
            if checkpoint["step"] == 0:
                continue
        ours = outputs[path][:, done[path] : done[path] + tokens]
        assert_same(ours, recording, checkpoint)
        done[path] += tokens
    assert len(set(done.values())) == 1, "all tokens of all of them"


def _embedding_path(recording: Recording) -> str:
    path: str = recording.of("embedding")[0]["path"]
    return path


STATEFUL = ("dynamic", "longrope")


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["llama-a1", "gemma2-a4", "zamba2-a6"])
@pytest.mark.parametrize("mode", ["decode", "chunked", "padded-decode"])
def test_caches_and_states_are_those_of_one_call_and_the_run_keeps_its_bits(
    tmp_path: Path, name: str, mode: str
) -> None:
    model = tiny.build(name)
    plain = run(model, mode)
    spread = 0 if name == "zamba2-a6" and mode != "chunked" else Proof().spread
    with record(model, tmp_path / "r", What(blocks=()), Proof(chained=True, spread=spread)):
        logits = run(model, mode)
    assert all(torch.equal(a, b) for a, b in zip(plain, logits, strict=True))
    assert validate(tmp_path / "r") == []
    recording = Recording(tmp_path / "r")
    x, call = ids(model), {"use_cache": True}
    if mode == "padded-decode":
        mask = torch.ones_like(x)
        mask[0, :3] = 0
        call |= {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    whole = run_lifted(model.forward, (x,), call, [model]).result
    head = recording.of("lm_head")[-1]
    tokens = recording.raw(head["outputs"]["out"]["tensor"]).shape[1]
    assert_same(whole.logits[:, -tokens:], recording, head)
    last = recording.checkpoints[-1]["step"]
    seen = 0
    for checkpoint in recording.checkpoints:
        if checkpoint["step"] != last:
            continue
        layer = whole.past_key_values.layers[max(0, _depth(checkpoint["path"]))]
        states: dict[str, Any] = {
            "kv_cache": lambda: {"keys_after": layer.keys, "values_after": layer.values},  # noqa: B023
            "causal_conv1d": lambda: {"state_after": layer.conv_states[0]},  # noqa: B023
            "ssd_scan": lambda: {"state_after": layer.recurrent_states[0]},  # noqa: B023
        }
        for output, state in states.get(checkpoint["block"], dict)().items():
            assert_same(state, recording, checkpoint, output)
            seen += 1
    assert seen >= 6


@pytest.mark.parametrize("name", ["llama-a1", "gemma2-a4"])
def test_static_buffers_hold_the_last_tokens_of_one_call(tmp_path: Path, name: str) -> None:
    model, slots = tiny.build(name), 18
    x = ids(model)
    plan = RunPlan(x, 13, x.shape[1] - 13, (3, 4, 6), cache="static", max_length=slots)
    with record(model, tmp_path / "r", What(blocks=()), Proof(chained=True)):
        run_model(model, plan)
    assert validate(tmp_path / "r") == []
    recording = Recording(tmp_path / "r")
    call = {"past_key_values": DynamicCache()}  # it keeps all, in sliding layers, too
    whole = run_lifted(model.forward, (x,), call, [model]).result
    assert_same(whole.logits[:, -1:], recording, recording.of("lm_head")[-1])
    last = recording.of("static_kv_cache")[-model.config.num_hidden_layers :]
    for checkpoint in last:
        layer = whole.past_key_values.layers[_depth(checkpoint["path"])]
        sliding = name == "gemma2-a4" and _depth(checkpoint["path"]) % 2 == 0
        length = 5 if sliding else slots
        for output, state in (("keys_after", layer.keys), ("values_after", layer.values)):
            held = state[:, :, -length:]
            unused = (0, 0, 0, length - held.shape[2])
            held = torch.nn.functional.pad(held, unused)
            assert_same(held, recording, checkpoint, output)


def test_a_recording_carries_it_everywhere_and_nowhere_else(tmp_path: Path) -> None:
    recording = recorded(
        tmp_path / "r", "zamba2-a6", "decode", "bf16", chained=True, blocks=(), spread=0
    )
    assert len(recording.of("kv_cache")) == 15 and len(recording.of("ssd_scan")) == 30
    for checkpoint in recording.checkpoints:
        names = set(chained_outputs(checkpoint["block"], checkpoint["path"]))
        if checkpoint["block"] != "rotary_table":  # it has the positions
            assert names, "blocks=() records nothing but the chain"
        for name, output in checkpoint["outputs"].items():
            assert ("chained_delta" in output) == (name in names)
    assert recorded(tmp_path / "plain", "llama-a1", "whole", "f32").checkpoints
    assert "chained_delta" not in (tmp_path / "plain" / "recording.json").read_text()


def test_amplification_is_what_the_recorded_tensors_say(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "llama-a1", "decode", "bf16", chained=True, blocks=())
    compared = 0
    for checkpoint in recording.checkpoints:
        if "amplification" not in checkpoint:
            continue
        key = "x" if checkpoint["block"] == "rms_norm" else "hidden"
        x = checkpoint["inputs"][key]["tensor"]
        before = next(
            c
            for c in recording.checkpoints
            if c["outputs"].get("out", {}).get("tensor") == x
            and "chained_delta" in c["outputs"]["out"]
        )
        o_before, o = chained(recording, before), chained(recording, checkpoint)
        came_in = (recording.tensor(x) - o_before).norm() / o_before.norm()
        went_out = (recording.oracle(checkpoint) - o).norm() / o.norm()
        assert checkpoint["amplification"] == pytest.approx(float(went_out / came_in), rel=1e-5)
        compared += 1
    assert compared == 5 * (3 - 1 + 2), "all but the first layer, whose input is exact"


def test_layers_that_pass_everything_on_amplify_by_one(tmp_path: Path) -> None:
    """With all weights of the layers zero, what the rounded embedding scale brought stays."""
    model = tiny.build("gemma2-a4")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".layers." in name and parameter.dim() > 1:
                parameter.zero_()
    with record(model, tmp_path / "r", What(blocks=()), Proof(chained=True)):
        run(model, "decode")
    layers = Recording(tmp_path / "r").of("decoder_layer")
    assert [c["amplification"] for c in layers] == [1.0] * 20


def test_frequencies_are_those_that_the_run_computed(tmp_path: Path) -> None:
    """Dynamic rotary recomputes inv_freq in float32 at 14 tokens of 10; so does the chain's run."""
    model = tiny.build("llama-a3-dynamic")
    x = ids(model, 1, 14)
    with record(model, tmp_path / "r", proof=Proof(chained=True)), torch.no_grad():
        model(x, use_cache=False)
    # inv_freq is that of the call from now on, and 14 tokens do not change it again.
    oracle = run_lifted(model.forward, (x,), {"use_cache": False}, [model]).result.logits
    recording = Recording(tmp_path / "r")
    head = recording.of("lm_head")[0]
    assert_same(oracle, recording, head)


def test_a_cache_from_before_the_recording_is_refused(tmp_path: Path) -> None:
    model = tiny.build("llama-a1")
    with torch.no_grad():
        cache = model(ids(model, 1, 4), use_cache=True).past_key_values
        with (
            pytest.raises(RecordError, match="the cache holds 4 tokens from before"),
            record(model, tmp_path / "r", proof=Proof(chained=True)),
        ):
            model(ids(model, 1, 1), past_key_values=cache)
    assert not (tmp_path / "r").exists()


def test_a_cache_that_others_changed_is_refused(tmp_path: Path) -> None:
    model = tiny.build("llama-a1")

    def run_with(change: Any) -> None:
        with record(model, tmp_path / "r", What(blocks=()), Proof(chained=True)), torch.no_grad():
            cache = model(ids(model, 2, 4), use_cache=True).past_key_values
            change(cache)
            model(ids(model, 2, 1), past_key_values=cache)

    def fail(cache: Any) -> None:
        with pytest.raises(IndexError):
            model(torch.full((2, 1), 99), past_key_values=cache)

    for change in (
        lambda cache: cache.reorder_cache(torch.tensor([1, 1])),
        lambda cache: cache.crop(3),
        fail,
    ):
        with pytest.raises(RecordError, match="the cache was changed between two calls"):
            run_with(change)
    run_with(lambda cache: None)
    assert validate(tmp_path / "r") == []


def test_a_static_cache_that_others_changed_is_refused(tmp_path: Path) -> None:
    model = tiny.build("gemma2-a4")

    def run_with(change: Any) -> None:
        cache = StaticCache(config=model.config, max_cache_len=8)
        with record(model, tmp_path / "r", What(blocks=()), Proof(chained=True)), torch.no_grad():
            model(ids(model, 2, 4), past_key_values=cache)
            change(cache)
            model(ids(model, 2, 1), past_key_values=cache)

    for change in (
        lambda cache: cache.reset(),
        lambda cache: cache.layers[1].keys[0, 0, 2].mul_(2),
    ):
        with pytest.raises(RecordError, match="the cache was changed between two calls"):
            run_with(change)
    run_with(lambda cache: None)
    assert validate(tmp_path / "r") == []


def test_what_generate_runs_is_chained(tmp_path: Path) -> None:
    model = tiny.build("gemma2-a4", torch.bfloat16)
    x = ids(model, 2, 7)
    plain = model.generate(x, max_new_tokens=4, do_sample=False)
    with (
        record(model, tmp_path / "r", What(blocks=()), Proof(chained=True)),
        torch.inference_mode(),
    ):
        assert torch.equal(model.generate(x, max_new_tokens=4, do_sample=False), plain)
    recording = Recording(tmp_path / "r")
    assert len(recording.of("lm_head")) == 4 and len(recording.of("kv_cache")) == 16
    oracle = run_lifted(model.forward, (plain[:, :-1],), {"use_cache": False}, [model]).result
    assert_same(oracle.logits[:, -1:], recording, recording.of("lm_head")[-1])


def test_options_that_exclude_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.build("llama-a1")
    with (
        pytest.raises(RecordError, match="chained needs whole outputs"),
        record(model, tmp_path / "r", proof=Proof(chained=True, oracle="leaves")),
    ):
        pass
    words = ["record", "--model", "tiny:llama", "--chained", "--out", str(tmp_path / "r")]
    assert main([*words, "--effort", "none"]) == 2
    assert "drop --effort none" in capsys.readouterr().err
    assert main([*words, "--tokens", "5"]) == 0
    assert "chained_delta" in (tmp_path / "r" / "recording.json").read_text()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype(tmp_path: Path, dtype: str) -> None:
    recording = recorded(tmp_path / "r", "gemma2-a4", "whole", dtype, chained=True, blocks=())
    key = recording.of("lm_head")[0]["outputs"]["out"]["chained_delta"]
    assert recording.raw(key).dtype == torch.float32
