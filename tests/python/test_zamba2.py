"""What is tapped of Zamba2, and where transformers rounds in its mixers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import zamba2_reference as reference
from recorded import Recording, ids, recorded, run
from transformers import DynamicCache
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback
from transformers.models.zamba2 import modeling_zamba2

from python_inspector import RecordError, record, tiny

FIXTURES = Path(__file__).parents[2] / "fixtures"
CALLS = {1: (0, 0), 3: (1, 1), 4: (2, 0)}
"""Index of the call and block used, by hybrid layer."""


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("decode") / "r", "zamba2-a6", "decode", "f32", spread=0)


def test_a_hybrid_layer_by_name(decode: Recording) -> None:
    names = [c["id"] for c in decode.checkpoints if c["step"] == 1 and "layers.3" in c["path"]]
    shared, mamba = "model.layers.3.shared_transformer", "model.layers.3.mamba_decoder"
    attn, mlp = f"{shared}.self_attn", f"{shared}.feed_forward"
    projections = []
    for index, name in enumerate("qkv"):
        adapter = f"{attn}.linear_{name}_adapter_list.1"
        projections += [
            f"{adapter}.0#1",
            f"{adapter}.1#1",
            f"{adapter}#1",
            f"{attn}:add#{3 + index}",
        ]
    assert names == [
        f"{shared}.input_layernorm#1",
        *(f"{attn}.{name}_proj#1" for name in "qkv"),
        *projections,
        f"{attn}:rotary#1",
        f"{attn}:kv_cache#1",
        *(f"{attn}:sdpa.{name}#1" for name in ("scores", "scale", "mask", "softmax", "values")),
        f"{attn}:sdpa#1",
        f"{attn}.o_proj#1",
        f"{attn}#1",
        f"{shared}.pre_ff_layernorm#1",
        f"{mlp}.gate_up_proj#1",
        *(f"{mlp}.gate_up_proj_adapter_list.1{part}#1" for part in (".0", ".1", "")),
        f"{mlp}:add#1",
        f"{mlp}.act_fn#1",
        f"{mlp}.down_proj#1",
        f"{mlp}:glu_activation#1",
        f"{mlp}#1",
        f"{shared}#1",
        "model.layers.3.linear#1",
        f"{mamba}:add#2",
        f"{mamba}.input_layernorm#1",
        f"{mamba}.mamba.in_proj#1",
        f"{mamba}.mamba.conv1d#1",
        f"{mamba}.mamba:ssd_scan#1",
        f"{mamba}.mamba.norm#1",
        f"{mamba}.mamba.out_proj#1",
        f"{mamba}.mamba#1",
        f"{mamba}:add#3",
        f"{mamba}#1",
        "model.layers.3#1",
    ]


def test_call_block_and_the_names_that_weights_are_stored_by(decode: Recording) -> None:
    used = {}
    for layer, (call, block) in CALLS.items():
        shared = decode.by_id[f"model.layers.{layer}.shared_transformer#2"]
        for checkpoint in (shared, decode.by_id[f"model.layers.{layer}#2"]):
            params = checkpoint["params"]
            assert (params["call"], params["block"]) == (call, block)
            assert params["attention"]["call"] == params["mlp"]["call"] == call
        adapters = {n.split("_list.")[1][0] for n in shared["weights"] if "_list." in n}
        assert adapters == {str(call)}
        keys = shared["weights"]
        stored = {n: decode.json["tensors"][key]["name"] for n, key in keys.items()}
        owner = f"model.layers.{(1, 3)[block]}.shared_transformer"
        assert stored == {name: f"{owner}.{name}" for name in stored}
        used[layer] = {n: key for n, key in keys.items() if "_list." not in n}
    assert used[1] == used[4]
    assert not set(used[1].values()) & set(used[3].values())


def test_states_are_those_before_and_after_each_call(decode: Recording) -> None:
    """transformers writes them in place: each state must be the one that its call left."""
    mixers = ["model.layers.0.mamba", "model.layers.4.mamba_decoder.mamba"]
    blocks = {
        "{}.conv1d#{}": ("state_before", "state_after", [2, 96, 4]),
        "{}:ssd_scan#{}": ("state_before", "state_after", [2, 4, 16, 8]),
        "{}#{}": ("ssm_before", "ssm_after", [2, 4, 16, 8]),
    }
    for mixer in mixers:
        for pattern, (before, after, shape) in blocks.items():
            calls = [decode.by_id[pattern.format(mixer, step)] for step in range(5)]
            states = [c["outputs"][after]["tensor"] for c in calls]
            assert before not in calls[0]["inputs"]
            assert [c["inputs"][before]["tensor"] for c in calls[1:]] == states[:-1]
            assert len(set(states)) == 5
            assert list(decode.raw(states[0]).shape) == shape
        calls = [decode.by_id[f"{mixer}#{step}"] for step in range(5)]
        assert [c["params"]["form"] for c in calls] == ["chunk", *["step"] * 4]
        assert [c["params"]["dt_min"] for c in calls] == [0.001, *[None] * 4]


def test_no_cache_has_no_states_and_one_token_may_be_a_chunk() -> None:
    whole = Recording(FIXTURES / "zamba2-a6/whole-f32-mixer")
    for checkpoint in whole.checkpoints:
        assert not [n for n in (*checkpoint["inputs"], *checkpoint["outputs"]) if "_" in n]
    assert {c["params"]["form"] for c in whole.of("ssd_scan")} == {"chunk"}
    chunked = Recording(FIXTURES / "zamba2-a6/chunked-f32-mixer").of("mamba2_mixer")
    forms = [c["params"]["form"] for c in chunked]
    assert forms == ["chunk", "step", "chunk", "chunk", "chunk"]
    first = chunked[0]["outputs"]["conv_after"]["tensor"]
    state = Recording(FIXTURES / "zamba2-a6/chunked-f32-mixer").raw(first)
    assert not state[:, :, :3].any() and state[:, :, 3].all(), "zeros on the left"


def test_padding(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "zamba2-a8", "padded-decode", "f32", spread=0)
    masked = ("causal_conv1d", "mamba2_mixer", "mamba_layer", "hybrid_layer")
    for checkpoint in recording.checkpoints:
        expected = checkpoint["block"] in masked and checkpoint["step"] == 0
        assert ("token_valid" in checkpoint["inputs"]) == expected, checkpoint["id"]
        if expected:
            valid = recording.raw(checkpoint["inputs"]["token_valid"]["tensor"])
            assert valid.sum(1).tolist() == [8, 11]
    layer = recording.by_id["model.layers.1#1"]
    assert "key_valid" in layer["inputs"], "attention sees the padding at every step"
    x = recording.tensor(recording.by_id["model.layers.0.mamba.conv1d#0"]["inputs"]["x"]["tensor"])
    assert x[0, :3].abs().min() > 0, "the bias of in_proj leaks into the convolution"


def test_caches_that_cannot_be_recorded(tmp_path: Path) -> None:
    model: Any = tiny.build("zamba2")
    cache = DynamicCache(config=model.config)
    cache.layers[0].record_past = True
    with (
        pytest.raises(RecordError, match=r"layers\.0\].*layers record their past"),
        record(model, tmp_path / "r"),
        torch.no_grad(),
    ):
        model(ids(model), past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("name", ["causal_conv1d_fn", "mamba2_selective_state_update"])
def test_a_kernel_in_place_of_torch_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def kernel(hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states

    package: Any = ModuleType("fast_kernels")
    package.kernel, kernel.__module__ = kernel, "fast_kernels"
    monkeypatch.setitem(sys.modules, "fast_kernels", package)
    torch_code: Any = getattr(modeling_zamba2, name).__wrapped__
    replaced = use_kernel_func_from_hub_with_fallback("kernel", "fast_kernels")(torch_code)
    monkeypatch.setattr(modeling_zamba2, name, replaced)
    model = tiny.build("zamba2")
    with (
        pytest.raises(RecordError, match=f"{name} runs fast_kernels"),
        record(model, tmp_path / "r"),
    ):
        run(model, "whole")


# Rounding points, on bits of bfloat16 runs.

Read = tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]


def rounded(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(np.array(x)).bfloat16().double().numpy()


def calls_of(block: str, form: str | None) -> Iterator[Read]:
    """Inputs, weights and results of each call, in float64."""
    recording = Recording(FIXTURES / "zamba2-a6/decode-bf16-mixer")
    for c in recording.of(block):
        if form is None or (c["step"] == 0) == (form == "chunk"):
            results = {k: recording.tensor(o["tensor"]) for k, o in c["outputs"].items()}
            read = (recording.inputs(c), recording.weights(c), results)
            inputs, weights, outputs = ({k: t.numpy() for k, t in part.items()} for part in read)
            yield inputs, weights, outputs


def agreement(block: str, form: str | None, name: str, ours: Callable[..., np.ndarray]) -> float:
    """The share of elements that are the recorded bits."""
    pairs = [(ours(i, w, r).ravel(), r[name].ravel()) for i, w, r in calls_of(block, form)]
    assert pairs
    return float(np.mean(np.concatenate([a == b for a, b in pairs])))


def test_convolution_rounds_before_and_after_the_activation() -> None:
    def convolve(inner: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        def ours(i: Any, w: Any, r: Any) -> np.ndarray:
            columns = np.concatenate([i.get("state_before", np.zeros((2, 96, 4))), i["x"].mT], 2)
            windows = np.lib.stride_tricks.sliding_window_view(columns, 4, 2)[:, :, 1:]
            y = np.einsum("bctk,ck->btc", windows, w["weight"][:, 0]) + w["bias"]
            return rounded(reference.silu(inner(y)))

        return ours

    assert agreement("causal_conv1d", None, "out", convolve(rounded)) > 0.995
    assert agreement("causal_conv1d", None, "out", convolve(lambda y: y)) < 0.9


def test_chunk_rounds_dt_twice_and_nothing_else() -> None:
    for inputs, w, results in calls_of("ssd_scan", "chunk"):
        raw = inputs["dt"] + w["dt_bias"]
        b, c = (np.repeat(inputs[name], 2, 2) for name in "bc")
        errors = {}
        for points in ("both", "one", "none"):
            dt = reference.softplus(raw if points == "none" else rounded(raw))
            dt = np.maximum(rounded(dt) if points == "both" else dt, 0.001)
            state, y = np.zeros((2, 4, 16, 8)), np.empty_like(inputs["x"])
            for t in range(y.shape[1]):
                decay = np.exp(-np.exp(w["A_log"]) * dt[:, t])[..., None, None]
                dx = dt[:, t, :, None, None] * inputs["x"][:, t, ..., None]
                state = decay * state + dx * b[:, t, :, None]
                y[:, t] = (state * c[:, t, :, None]).sum(-1) + w["D"][:, None] * inputs["x"][:, t]
            errors[points] = np.abs(y - results["y"]).max() / np.abs(y).max()
        assert errors["both"] < 2e-6 and min(errors["one"], errors["none"]) > 1e-4


def test_step_rounds_every_product_but_keeps_the_state_in_float32() -> None:
    recording = Recording(FIXTURES / "zamba2-a6/decode-bf16-mixer")
    for checkpoint in recording.of("ssd_scan"):
        results = checkpoint["outputs"]
        y, state = (recording.raw(results[name]["tensor"]).dtype for name in ("y", "state_after"))
        assert y == (torch.bfloat16 if checkpoint["step"] else torch.float32)
        assert state == torch.float32
    for i, w, r in calls_of("ssd_scan", "step"):
        x, dt = i["x"][:, 0], rounded(reference.softplus(rounded(i["dt"][:, 0] + w["dt_bias"])))
        b = np.repeat(i["b"][:, 0], 2, 1)
        update = rounded(rounded(dt[..., None] * b)[:, :, None] * x[..., None])
        decay = np.exp(-np.exp(w["A_log"]) * dt)[..., None, None]
        assert np.abs(decay * i["state_before"] + update - r["state_after"]).max() < 1e-6

    def output(state: Callable[..., np.ndarray], sums: Callable[..., np.ndarray]) -> float:
        def ours(i: Any, w: Any, r: Any) -> np.ndarray:
            c = np.repeat(i["c"][:, 0], 2, 1)[:, :, None]
            product = sums((state(r["state_after"]) * c).sum(-1))
            return rounded(product + sums(w["D"][:, None] * i["x"][:, 0]))[:, None]

        return agreement("ssd_scan", "step", "y", ours)

    exact = np.asarray
    assert output(rounded, rounded) > 0.995
    assert output(exact, rounded) < 0.95 and output(rounded, exact) < 0.95


def test_gated_norm_is_float32_in_a_chunk_and_rounds_twice_in_a_step() -> None:
    def norm(i: Any) -> np.ndarray:
        return reference.rms(i["x"] * reference.silu(i["gate"]), np.ones(64), 1e-5, 32)

    for i, w, r in calls_of("gated_rms_norm", "chunk"):
        assert np.abs(norm(i) * w["weight"] - r["out"]).max() < 2e-6
    twice = agreement(
        "gated_rms_norm", "step", "out", lambda i, w, r: rounded(w["weight"] * rounded(norm(i)))
    )
    once = agreement(
        "gated_rms_norm", "step", "out", lambda i, w, r: rounded(w["weight"] * norm(i))
    )
    assert twice > 0.995 and once < 0.9
    recording = Recording(FIXTURES / "zamba2-a6/whole-f16")
    normed = recording.by_id["model.layers.0.mamba.norm#0"]["outputs"]["out"]["tensor"]
    projected = recording.by_id["model.layers.0.mamba.out_proj#0"]["inputs"]["x"]["tensor"]
    assert torch.equal(recording.raw(normed).half(), recording.raw(projected))
