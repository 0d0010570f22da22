"""What is tapped: every block of the format, with the parameters that a consumer needs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import DTYPES, Recording, ids, recorded, run
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from python_inspector import RecordError, RecordWarning, record, tiny
from python_inspector.format.blocks import BLOCKS
from python_inspector.format.validate import validate
from python_inspector.taps.options import COMPONENTS, Proof, What

MAMBA_KINDS = {
    "causal_conv1d", "ssd_scan", "gated_rms_norm", "mamba2_mixer", "low_rank_adapter",
    "shared_transformer", "mamba_layer", "hybrid_layer",
}  # fmt: skip


class OtherCache(DynamicCache):
    """A cache of a class that no tap describes."""


def test_every_gemma2_layer_has_thirty_named_checkpoints_a_step(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "gemma2-a4", "decode", "f32", spread=0)
    for step in range(5):
        for layer in range(4):
            prefix = f"model.layers.{layer}"
            here = [
                c
                for c in recording.checkpoints
                if c["step"] == step and f"{c['path']}.".startswith(f"{prefix}.")
            ]
            names = {c["id"].rpartition("#")[0] for c in here}
            assert len(names) >= 30, f"layer {layer}, step {step}: {sorted(names)}"
            assert len(here) == len(names) + 1  # the two residual sums share a name


def test_kinds(tmp_path: Path) -> None:
    gemma = recorded(tmp_path / "g", "gemma2-a4", "decode", "bf16", spread=0)
    kinds = {c["block"] for c in gemma.checkpoints}
    assert kinds == set(BLOCKS) - {"layer_norm", "static_kv_cache"} - MAMBA_KINDS - COMPONENTS
    llama = recorded(tmp_path / "l", "llama-a1", "decode", "f32", spread=0)
    assert {c["block"] for c in llama.checkpoints} == kinds - {"softcap"}
    zamba = recorded(tmp_path / "z", "zamba2-a7", "whole", "bf16", spread=0)
    assert {c["block"] for c in zamba.checkpoints} >= MAMBA_KINDS
    blocks = recorded(tmp_path / "b", "blocks", "whole", "f32", spread=0)
    assert len(blocks.of("layer_norm")) > 0
    assert {c["params"]["function"] for c in blocks.of("activation")} >= {"gelu", "silu", "tanh"}
    assert {c["params"]["style"] for c in blocks.of("rotary")} == {"interleaved"}


def test_a_llama_layer_by_name(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "llama-a1", "decode", "f32", spread=0)
    names = [c["id"] for c in recording.checkpoints if c["step"] == 1 and "layers.1" in c["path"]]
    attn, mlp = "model.layers.1.self_attn", "model.layers.1.mlp"
    assert names == [
        "model.layers.1.input_layernorm#1",
        f"{attn}.q_proj#1",
        f"{attn}.k_proj#1",
        f"{attn}.v_proj#1",
        f"{attn}:rotary#1",
        f"{attn}:kv_cache#1",
        f"{attn}:sdpa.repeat_keys#1",
        f"{attn}:sdpa.repeat_values#1",
        f"{attn}:sdpa.scores#1",
        f"{attn}:sdpa.scale#1",
        f"{attn}:sdpa.mask#1",
        f"{attn}:sdpa.softmax#1",
        f"{attn}:sdpa.values#1",
        f"{attn}:sdpa#1",
        f"{attn}.o_proj#1",
        f"{attn}#1",
        "model.layers.1:add#2",
        "model.layers.1.post_attention_layernorm#1",
        f"{mlp}.gate_proj#1",
        f"{mlp}.act_fn#1",
        f"{mlp}.up_proj#1",
        f"{mlp}.down_proj#1",
        f"{mlp}:glu_activation#1",
        f"{mlp}#1",
        "model.layers.1:add#3",
        "model.layers.1#1",
    ]


def test_blocks_hang_together(tmp_path: Path) -> None:
    """Outputs and inputs that are one tensor have one key."""
    recording = recorded(tmp_path / "r", "gemma2-a4", "decode", "bf16", spread=0)

    def out(id_: str, name: str = "out") -> str:
        return str(recording.by_id[id_]["outputs"][name]["tensor"])

    def given(id_: str, name: str = "x") -> str:
        return str(recording.by_id[id_]["inputs"][name]["tensor"])

    attn, mlp = "model.layers.0.self_attn", "model.layers.0.mlp"
    assert out("model.embed_tokens#1") == given("model.layers.0#1", "hidden")
    assert out("model.layers.0.input_layernorm#1") == given(f"{attn}.q_proj#1")
    assert out("model.rotary_emb#1", "cos") == given(f"{attn}:rotary#1", "cos")
    assert out("model.rotary_emb:frequencies#0", "inv_freq") == given("model.rotary_emb#3", "inv_freq")  # fmt: skip # noqa: E501
    assert out(f"{attn}:rotary#1", "q") == given(f"{attn}:sdpa#1", "q")
    assert out(f"{attn}:rotary#1", "k") == given(f"{attn}:kv_cache#1", "k")
    assert out(f"{attn}:kv_cache#1", "keys") == given(f"{attn}:sdpa#1", "k")
    assert out(f"{attn}:kv_cache#0", "keys_after") == given(f"{attn}:kv_cache#1", "keys_before")
    assert out(f"{attn}:sdpa.softcap_multiply#1") == out(f"{attn}:sdpa.softcap#1")
    assert out(f"{attn}:sdpa.softmax#1") == given(f"{attn}:sdpa.values#1", "a")
    assert out(f"{mlp}:glu_activation#1") == given(f"{mlp}.down_proj#1")
    assert out("model.layers.0:add#3") == out("model.layers.0#1")
    assert out("model.layers.0#1") == given("model.layers.1#1", "hidden")
    assert out("model.norm#1") == given("lm_head:logits#1", "hidden")
    assert out("lm_head:softcap#1") == out("lm_head:logits#1")
    assert recording.by_id["lm_head#0"]["weights"] == recording.by_id["model.embed_tokens#0"]["weights"]  # fmt: skip # noqa: E501


def test_cache_states(tmp_path: Path) -> None:
    """A sliding layer of window 5 keeps 4; keys_before is absent only while it is empty."""
    recording = recorded(tmp_path / "r", "gemma2-a4", "decode", "f32", spread=0)
    for layer, window in ((0, 5), (1, None)):
        calls = [c for c in recording.of("kv_cache") if f"layers.{layer}." in c["path"]]
        assert [("keys_before" in c["inputs"]) for c in calls] == [False, True, True, True, True]
        assert all(c["params"] == {"kind": "dynamic", "window": window} for c in calls)
        kept = [recording.raw(c["outputs"]["keys_after"]["tensor"]).shape[2] for c in calls]
        assert kept == ([4] * 5 if window else [11, 12, 13, 14, 15])
        attention = recording.by_id[f"model.layers.{layer}.self_attn#2"]
        assert attention["params"]["cache"] == {"kind": "dynamic", "window": window}
        assert {"keys_after", "values_after"} <= attention["outputs"].keys()
        assert recording.by_id[f"model.layers.{layer}#2"]["outputs"].keys() == {"out"}
    whole = recorded(tmp_path / "w", "gemma2-a4", "whole", "f32", spread=0)
    assert whole.by_id["model.layers.0.self_attn#0"]["params"]["cache"] is None


def test_masks_are_numbers(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "gemma2-a4", "padded-decode", "f16", spread=0)
    fields = ("causal", "window", "query_offset", "key_offset")
    for step, (query, key) in enumerate([(0, 0), (11, 7), (12, 8), (13, 9), (14, 10)]):
        sliding = recording.by_id[f"model.layers.0.self_attn:sdpa#{step}"]
        full = recording.by_id[f"model.layers.1.self_attn:sdpa#{step}"]
        assert [sliding["params"][f] for f in fields] == [True, 5, query, key]
        assert [full["params"][f] for f in fields] == [True, None, query, 0]
        assert ("key_valid" in sliding["inputs"]) == (key < 3)  # three pads on the left
        assert "key_valid" in full["inputs"]
        masks = [c for c in recording.of("causal_mask") if c["step"] == step]
        assert [c["function"] for c in masks] == [
            "causal_mask.full_attention",
            "causal_mask.sliding_attention",
        ]


def test_masked_add_is_judged_where_nothing_is_masked(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "gemma2-a4", "padded-decode", "f16", spread=0)
    partly = 0
    for checkpoint in recording.of("masked_add"):
        mask = recording.raw(checkpoint["inputs"]["mask"]["tensor"])
        assert torch.equal(recording.valid(checkpoint), (mask == 0).expand(-1, 4, -1, -1))
        partly += "valid" in checkpoint["outputs"]["out"]
    assert 0 < partly < len(recording.of("masked_add"))


@pytest.mark.sampled
@pytest.mark.parametrize(("attention", "natural"), [("eager", "uniform"), ("sdpa", "zero")])
@pytest.mark.parametrize("policy", ["excluded", "judged"])
def test_rows_without_a_key(tmp_path: Path, attention: str, natural: str, policy: str) -> None:
    recording = recorded(
        tmp_path / "r", "llama-a1", "padded-decode", "f32", attention, masked_rows=policy
    )
    for block in ("sdpa", "attention", "decoder_layer"):
        first = next(c for c in recording.of(block) if c["step"] == 0)
        later = next(c for c in recording.of(block) if c["step"] == 1)
        params = [c["params"].get("attention", c["params"]) for c in (first, later)]
        assert params[0]["fully_masked"] == (policy if policy == "excluded" else natural)
        assert params[1]["fully_masked"] == natural
        assert "valid" not in later["outputs"]["out"]
        assert ("valid" in first["outputs"]["out"]) == (policy == "excluded")
        if policy == "excluded":
            valid = recording.raw(first["outputs"]["out"]["valid"]["tensor"])
            expected = torch.ones(2, 11, dtype=torch.bool)
            expected[0, :3] = False
            assert torch.equal(valid, expected)
    first = recording.by_id["model.layers.0.self_attn:sdpa#0"]
    values = torch.repeat_interleave(recording.tensor(first["inputs"]["v"]["tensor"]), 2, 1)
    blind = recording.tensor(first["outputs"]["out"]["tensor"])[0, 0]
    mean = values[0].mean(1) if natural == "uniform" else torch.zeros_like(blind)
    assert torch.allclose(blind, mean, atol=1e-6)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_mask_of_ones_own_is_recorded_as_it_is(tmp_path: Path, attention: str) -> None:
    model = tiny.build("llama-a1", attention=attention)
    x = ids(model, tokens=6)
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()
    allowed[:, 0] = True
    allowed[5, 2] = False
    mask = allowed[None, None]
    if attention == "eager":
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    with record(model, tmp_path / "r"), torch.no_grad():
        model(x, attention_mask=mask, use_cache=False)
    recording = Recording(tmp_path / "r")
    assert validate(tmp_path / "r") == []
    assert recording.of("causal_mask") == []
    for block in ("sdpa", "attention", "decoder_layer"):
        checkpoint = recording.of(block)[0]
        params = checkpoint["params"].get("attention", checkpoint["params"])
        assert (params["causal"], params["window"]) == (False, None)
        assert torch.equal(recording.raw(checkpoint["inputs"]["mask"]["tensor"]), mask)
        assert "key_valid" not in checkpoint["inputs"]


def test_max_abs_score_is_over_unmasked_scores_after_the_softcap(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "gemma2-a4", "whole", "f32", spread=0)
    checkpoint = recording.by_id["model.layers.0.self_attn:sdpa#0"]
    after = recording.by_id["model.layers.0.self_attn:sdpa.softcap#0"]
    scores = recording.oracle(after).abs()
    place = torch.arange(15)
    seen = (place[None] <= place[:, None]) & (place[:, None] - place[None] < 5)
    largest = checkpoint["params"]["max_abs_score"]
    assert largest == pytest.approx(float(scores[..., seen].max()), rel=1e-5)
    assert largest < float(scores.max()), "pick a seed whose largest score is masked"


def test_contracts(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "llama-a1", "whole", "bf16", "sdpa", spread=0)
    fused = {c["block"] for c in recording.checkpoints if c["contract"] == "fused"}
    assert fused == {"sdpa", "attention", "decoder_layer"}
    assert recording.of("rotary_frequencies")[0]["contract"] == "float32"
    accumulator = {"bits": 24, "rounding": "nearest"}
    assert recording.json["contracts"] == {
        name: {"storage": dtype, "multiply": dtype, "accumulator": accumulator, "points": points}
        for name, dtype, points in (
            ("eager", "bf16", "eager"),
            ("float32", "f32", "eager"),
            ("fused", "bf16", "fused"),
        )
    }
    eager = recorded(tmp_path / "e", "llama-a1", "whole", "bf16", spread=0)
    assert {c["contract"] for c in eager.of("decoder_layer")} == {"eager"}


def test_dynamic_frequencies_follow_the_state_machine(tmp_path: Path) -> None:
    model = tiny.build("llama-a3-dynamic")
    with record(model, tmp_path / "r"), torch.no_grad():
        for tokens in (9, 14, 11, 10, 9, 12):
            model(ids(model, tokens=tokens), use_cache=False)
    found = Recording(tmp_path / "r").of("rotary_frequencies")
    lengths = [(c["step"], c["params"]["length"]) for c in found]
    assert lengths == [(0, 10), (1, 14), (4, 10), (5, 12)]


def test_longrope_frequencies_follow_the_call(tmp_path: Path) -> None:
    model = tiny.build("llama-a3-longrope")
    with record(model, tmp_path / "r"), torch.no_grad():
        for tokens in (10, 11, 12, 10):
            model(ids(model, tokens=tokens), use_cache=False)
    found = Recording(tmp_path / "r").of("rotary_frequencies")
    assert [(c["step"], c["params"]["length"]) for c in found] == [(0, 10), (1, 11), (3, 10)]


def test_rotary_parameters_are_resolved(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "llama-a3-yarn", "whole", "f32", spread=0)
    assert recording.of("rotary_frequencies")[0]["params"] == {
        "type": "yarn", "dim": 16, "theta": 10000.0, "factor": 4.0,
        "original_max_position": 4096, "beta_fast": 32, "beta_slow": 1, "truncate": True,
    }  # fmt: skip


def test_embedding_scale_is_rounded_as_the_model_rounds_it(tmp_path: Path) -> None:
    for dtype, scale in (("bf16", 6.9375), ("f16", 6.9296875)):
        recording = recorded(tmp_path / dtype, "gemma2-a5-c48", "whole", dtype, spread=0)
        assert recording.of("embedding")[0]["params"] == {"scale": scale}
    model: Any = tiny.build("gemma2-a5-c48", DTYPES["bf16"])
    model.model.embed_tokens.embed_scale = torch.tensor(48**0.5)  # as from_pretrained leaves it
    with record(model, tmp_path / "r", What(blocks=["embedding"])):
        run(model, "whole")
    found = Recording(tmp_path / "r").of("embedding")[0]
    assert found["params"] == {"scale": 6.9375}
    assert found["outputs"]["out"]["error"] > 1e-4


def test_softcap_params_and_head(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "gemma2-a4", "whole", "f32", spread=0)
    assert Counter(c["params"]["cap"] for c in recording.of("softcap")) == {3.0: 4, 2.0: 1}
    ids = [c["id"] for c in recording.checkpoints if c["path"] == "lm_head"]
    parts = ["softcap_divide", "softcap_tanh", "softcap_multiply", "softcap", "logits"]
    assert ids == ["lm_head#0", *(f"lm_head:{part}#0" for part in parts)]
    assert recording.of("lm_head")[0]["params"] == {"logits_to_keep": 0, "softcap": 2.0}
    assert recording.of("rms_norm")[0]["params"] == {
        "eps": 1e-06, "weight_offset": 1, "rounding": "after",
    }  # fmt: skip


def test_logits_to_keep(tmp_path: Path) -> None:
    model = tiny.build("gemma2-a4")
    x = ids(model)
    with record(model, tmp_path / "r"), torch.no_grad():
        model(x, logits_to_keep=2)
        model(x, return_dict=False, labels=x)
    recording = Recording(tmp_path / "r")
    assert [recording.raw(c["outputs"]["out"]["tensor"]).shape[1] for c in recording.of("lm_head")] == [2, 15]  # fmt: skip # noqa: E501
    rows = torch.tensor([1, 4])
    warned = pytest.warns(RecordWarning, match="logits_to_keep is a tensor")
    with record(model, tmp_path / "s"), torch.no_grad(), warned:
        model(x, logits_to_keep=rows)
    assert Recording(tmp_path / "s").of("lm_head") == []


def test_an_architecture_without_taps(tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "gpt_neox", vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    with (
        pytest.warns(RecordWarning, match="no taps for GPTNeoXForCausalLM"),
        record(model, tmp_path / "r", proof=Proof(bugs=False)),
    ):
        run(model, "decode")
    recording = Recording(tmp_path / "r")
    assert validate(tmp_path / "r") == []
    kinds = Counter(c["block"] for c in recording.checkpoints)
    assert kinds.keys() >= {"linear", "layer_norm", "embedding", "activation", "module", "kv_cache"}
    assert any("no taps" in text for text in recording.json["provenance"]["warnings"])
    errors = [c["outputs"]["out"]["error"] for c in recording.of("layer_norm")]
    assert 0 < max(errors) < 1e-6

    cache = OtherCache(config=model.config)
    with (
        pytest.warns(RecordWarning, match="unsupported cache OtherCache"),
        record(model, tmp_path / "s", proof=Proof(bugs=False)),
        torch.no_grad(),
    ):
        model(ids(model), past_key_values=cache)
    assert Recording(tmp_path / "s").of("kv_cache") == []


def test_what_numpy_computes_is_taken_as_given(tmp_path: Path) -> None:
    class Outside(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[None, torch.Tensor]:
            return None, torch.from_numpy(x.numpy() * 2) * 3

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Outside()).eval()
    with (
        pytest.warns(RecordWarning, match="1: what NumPy computes is taken as given"),
        record(model, tmp_path / "r"),
        torch.no_grad(),
    ):
        model(torch.randn(2, 3, 4))
    recording = Recording(tmp_path / "r")
    assert validate(tmp_path / "r") == []
    assert [c["id"] for c in recording.checkpoints] == ["0#0", "1#0", "model:forward#0"]
    given = recording.inputs(recording.checkpoints[1])["x"]
    assert torch.equal(recording.oracle(recording.checkpoints[1]), given * 6)
    assert recording.checkpoints[1]["outputs"]["out"]["spread"]["element"][2] < 1e-6


def test_unsupported_cache(tmp_path: Path) -> None:
    model: Any = tiny.build("llama-a1")
    x = ids(model)
    cache = OtherCache(config=model.config)
    with (
        pytest.raises(RecordError, match="unsupported cache OtherCache"),
        record(model, tmp_path / "r"),
        torch.no_grad(),
    ):
        model(x, past_key_values=cache, use_cache=True)
    assert not (tmp_path / "r").exists()


def test_head_of_a_bare_decoder(tmp_path: Path) -> None:
    model: Any = tiny.build("llama-a1", DTYPES["bf16"])
    with record(model.model, tmp_path / "r"), torch.no_grad():
        model.model(ids(model))
    recording = Recording(tmp_path / "r")
    assert validate(tmp_path / "r") == []
    assert recording.of("lm_head") == []
    assert recording.of("causal_mask")[0]["id"] == "model:causal_mask#0"
    assert len(recording.of("decoder_layer")) == 3
