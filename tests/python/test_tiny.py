"""Tiny models and the runs made of them."""

from __future__ import annotations

import pytest
import torch

from python_inspector import tiny
from python_inspector.errors import PlanError
from python_inspector.models.inputs import PAD_ID, RunPlan, pad_left, random_ids, run_model

HF_NAMES = [name for name in tiny.MODELS if name not in ("blocks", "components")]


def vocabulary(model: torch.nn.Module) -> int:
    return model.get_input_embeddings().weight.shape[0]  # type: ignore[operator,no-any-return]


def test_weights_depend_on_seed_and_name_alone() -> None:
    first, again, other = (tiny.build("llama", seed=seed) for seed in (1, 1, 2))
    torch.manual_seed(99)
    third = dict(tiny.build("llama", seed=1).named_parameters())
    for (name, a), b, c in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b) and torch.equal(a, third[name])
        assert not torch.equal(a, c)
    # a deeper model draws the layers they share from the same numbers
    deep = tiny.draw_weights(tiny.build("gemma2"), 1)
    name = "model.layers.0.self_attn.o_proj.weight"
    shallow = tiny.draw_weights(tiny.build("gemma2-a5-no-caps"), 1)
    assert torch.equal(deep[name], shallow[name])


@pytest.mark.parametrize("name", tiny.MODELS)
def test_no_parameter_hides_an_error(name: str) -> None:
    model = tiny.build(name)
    assert not model.training
    for label, parameter in model.named_parameters():
        spread = parameter.double().std().item()
        if label.endswith("norm.weight"):
            assert (parameter - 1).abs().max() > 0.1
        if parameter.dim() == 1 or "embed" in label or label.endswith("norm.weight"):
            assert spread > 0.1, f"{label} is nearly constant"
        else:
            entry = tiny.find(name)[1]
            gain = entry.gain * (entry.score_gain if "q_proj" in label else 1.0)
            assert spread == pytest.approx(gain / parameter[0].numel() ** 0.5, rel=0.15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "llama-a3-yarn"])
def test_sixteen_bit_models_are_the_rounded_ones_with_float32_frequencies(
    name: str, dtype: torch.dtype
) -> None:
    wide, narrow = tiny.build(name), tiny.build(name, dtype)
    for a, b in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert torch.equal(a.to(dtype), b)
    frequencies = narrow.model.rotary_emb.inv_freq  # type: ignore[union-attr]
    assert frequencies.dtype == torch.float32  # type: ignore[union-attr]
    assert torch.equal(frequencies, wide.model.rotary_emb.inv_freq)  # type: ignore[union-attr,arg-type]


def test_names_and_aliases() -> None:
    assert tiny.find("llama") == tiny.find("llama-a1")
    assert tiny.find("gemma2")[0] == "gemma2-a4"
    with pytest.raises(tiny.UnknownModelError, match="llama-a1"):
        tiny.find("llama-a9")


@pytest.mark.parametrize("name", HF_NAMES)
def test_the_ways_to_run_a_model_agree(name: str) -> None:
    model = tiny.build(name)
    ids = random_ids(2, 15, vocabulary(model))
    whole = run_model(model, RunPlan(ids, 15))[0]
    limit = 1e-5 * whole.abs().max()
    clamps_alike = name != "zamba2-a8"  # a step does not limit dt from below, a chunk does
    decode = torch.cat(run_model(model, RunPlan(ids, 11, 4, cache="dynamic")), 1)
    if not name.endswith(("-longrope", "-dynamic")):  # whose frequencies follow the call
        assert ((decode - whole).abs().max() < limit) == clamps_alike
        chunked = RunPlan(ids, 15, chunks=(5, 10), cache="dynamic")
        assert (torch.cat(run_model(model, chunked), 1) - whole).abs().max() < limit
    padded = pad_left(ids, (3, 0))
    once = run_model(model, RunPlan(padded, 15, left_pad=(3, 0)))[0]
    steps = run_model(model, RunPlan(padded, 11, 4, left_pad=(3, 0), cache="dynamic"))
    assert ((torch.cat(steps, 1) - once)[:, 3:].abs().max() < limit) == clamps_alike
    assert (once[1] - whole[1]).abs().max() < limit, "padding one row leaves the other alone"
    alone = run_model(model, RunPlan(ids[:1, 3:], 12))[0]
    if not name.endswith(("-longrope", "-dynamic")):
        seen = bool((once[0, 3:] - alone[0]).abs().max() > limit)
        assert seen == (name == "zamba2-a8"), "only through in_proj's bias is padding seen"


def test_greedy_steps_continue_the_prompt() -> None:
    model = tiny.build("llama")
    prompt = random_ids(1, 5, vocabulary(model))
    logits = run_model(model, RunPlan(prompt, 5, 3, cache="dynamic"))
    ids = prompt
    for step in logits[:-1]:
        ids = torch.cat([ids, step[:, -1:].argmax(-1)], 1)
    again = run_model(model, RunPlan(ids, 8))[0]
    assert (again[:, -1] - logits[-1][:, -1]).abs().max() < 1e-5 * again.abs().max()


def test_logits_to_keep_gives_the_last_rows() -> None:
    model = tiny.build("gemma2")
    ids = random_ids(2, 7, vocabulary(model))
    few, all_rows = (run_model(model, RunPlan(ids, 7, logits_to_keep=n))[0] for n in (3, 0))
    assert few.shape[1] == 3
    assert torch.allclose(few, all_rows[:, -3:], atol=1e-5)


def test_separate_calls_keep_the_dynamic_base() -> None:
    model = tiny.build("llama-a3-dynamic")
    rotary = model.model.rotary_emb  # type: ignore[union-attr]
    ids = random_ids(2, 14, vocabulary(model))
    seen = []
    plan = RunPlan(ids, 14, chunks=(14, 11, 10, 9))
    assert plan.mode == "whole" and plan.calls == 4
    run_model(model, plan, lambda: seen.append(rotary.inv_freq.clone()))  # type: ignore[union-attr,operator]
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[3])


def test_outliers_are_in_the_activations() -> None:
    model = tiny.build("llama-outliers")
    entry = tiny.MODELS["llama-outliers"]
    ids = random_ids(2, 15, vocabulary(model), marked=entry.outlier_token)
    assert int((ids == entry.outlier_token).sum()) == 1
    states = []
    layers = model.model.layers  # type: ignore[union-attr]
    for layer in layers:  # type: ignore[union-attr]
        layer.register_forward_pre_hook(lambda m, args: states.append(args[0]))
    run_model(model, RunPlan(ids, 15))
    plain = [c for c in range(32) if c not in entry.outlier_channels]
    for state in states:
        typical = state[..., plain].abs().median()
        large = state[..., list(entry.outlier_channels)].abs().median()
        assert large > (10 if state is states[0] else 4) * typical  # the others grow by sums
        assert (state.abs() > 100 * typical).sum() == 1
    assert states[0].abs().max() == tiny.OUTLIER_VALUE_GAIN


def test_gemmas_scores_reach_the_knee_of_the_softcap() -> None:
    import transformers.models.gemma2.modeling_gemma2 as gemma2

    model = tiny.build("gemma2")
    shares = []
    real = gemma2.eager_attention_forward

    def watch(module, query, key, *args, **kwargs):  # type: ignore[no-untyped-def]
        groups = query.shape[1] // key.shape[1]
        scores = query @ key.repeat_interleave(groups, 1).mT * kwargs["scaling"]
        shares.append((scores.abs() > kwargs["softcap"] / 2).double().mean().item())
        return real(module, query, key, *args, **kwargs)

    gemma2.eager_attention_forward = watch
    try:
        run_model(model, RunPlan(random_ids(2, 15, vocabulary(model)), 15))
    finally:
        gemma2.eager_attention_forward = real
    assert min(shares) > 0.01


def test_blocks_model_runs_in_both_attentions() -> None:
    for attention in ("eager", "sdpa"):
        model = tiny.build("blocks", attention=attention)
        logits = run_model(model, RunPlan(random_ids(2, 9, 47), 9))[0]
        assert logits.isfinite().all()


# Plans.


def test_random_ids() -> None:
    ids = random_ids(2, 30, 20, seed=5, marked=7)
    assert torch.equal(ids, random_ids(2, 30, 20, seed=5, marked=7))
    assert not torch.equal(ids[0], ids[1])
    assert int(ids.min()) >= 3 and int(ids.max()) < 20
    assert (ids == 7).sum() == 1
    with pytest.raises(PlanError, match="vocabulary of 4"):
        random_ids(1, 3, 4)


def test_padding_replaces_the_first_ids_of_a_row() -> None:
    ids = torch.arange(10, 20).reshape(2, 5)
    assert pad_left(ids, (2, 0)).tolist() == [[PAD_ID, PAD_ID, 12, 13, 14], ids[1].tolist()]
    mask = RunPlan(ids, 5, left_pad=(2, 0)).attention_mask()
    assert mask is not None and mask.tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]


IDS = torch.full((2, 8), 5)


@pytest.mark.parametrize(
    ("plan", "mode", "calls"),
    [
        ({"tokens": 8}, "whole", 1),
        ({"tokens": 5, "steps": 3, "cache": "dynamic"}, "decode", 4),
        ({"tokens": 8, "chunks": (3, 5), "cache": "dynamic"}, "chunked", 2),
        ({"tokens": 8, "left_pad": (1, 0)}, "padded", 1),
        ({"tokens": 8, "left_pad": (1, 0), "cache": "dynamic", "steps": 1}, "padded-decode", 2),
    ],
)
def test_modes(plan: dict, mode: str, calls: int) -> None:  # type: ignore[type-arg]
    made = RunPlan(IDS, **plan)
    assert (made.mode, made.calls) == (mode, calls)
    header = made.header()
    assert list(header) == ["mode", "batch", "tokens", "steps", "chunks", "left_pad", "cache"]
    assert header["mode"] == mode and header["batch"] == 2 and header["tokens"] == plan["tokens"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"tokens": 9}, "9 tokens, ids have 8"),
        ({"tokens": 0}, "0 tokens"),
        ({"tokens": 8, "steps": 2}, "need a cache"),
        ({"tokens": 8, "steps": -1, "cache": "dynamic"}, "negative"),
        ({"tokens": 8, "cache": "ring"}, "'ring'"),
        ({"tokens": 8, "cache": "static", "max_length": 7}, "7 slots has no room for 8 tokens"),
        ({"tokens": 8, "chunks": (3, 4), "cache": "dynamic"}, "add up to 7"),
        ({"tokens": 8, "chunks": (8, 0), "cache": "dynamic"}, "at least 1"),
        ({"tokens": 8, "chunks": (9, 2)}, "call of 9 tokens"),
        ({"tokens": 8, "left_pad": (1,)}, "1 numbers, the batch 2 rows"),
        ({"tokens": 8, "left_pad": (8, 0)}, "below 8"),
        ({"tokens": 8, "left_pad": (1, 0), "chunks": (4, 4), "cache": "dynamic"}, "combined"),
    ],
)
def test_plans_that_make_no_sense(plan: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(PlanError, match=message):
        RunPlan(IDS, **plan)
