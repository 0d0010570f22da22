"""verify_model(): engines made of transformers itself, right ones and ones with a fault each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded import DTYPES
from safetensors.torch import load_file, save_file

import python_inspector
from python_inspector import record, tiny
from python_inspector.engines.capture import capture
from python_inspector.engines.weights import transformers_model
from python_inspector.errors import FormatError
from python_inspector.models.inputs import run_model
from python_inspector.taps.options import Proof, What

LAYERS = {name: name for name in ("model.embed_tokens", "model.layers.{}", "model.norm")}
Change = Callable[[Any], None]


def layers_of(model: Any, wanted: bool) -> dict[str, str]:
    """Zamba2's final norm has a name of its own."""
    own = {"model.norm": "model.final_layernorm"} if hasattr(model.model, "final_layernorm") else {}
    return {own.get(name, name): own.get(name, name) for name in LAYERS} if wanted else {}


def whole(model: Any, layers: bool = True) -> Callable[[torch.Tensor], Any]:
    def run(ids: torch.Tensor) -> Any:
        with torch.no_grad(), capture(model, layers_of(model, layers)) as taken:
            return {"logits": model(ids, use_cache=False).logits, **taken}

    return run


def cached(model: Any, layers: bool = True) -> Callable[[torch.Tensor, Any], Any]:
    def run(ids: torch.Tensor, cache: Any) -> Any:
        with torch.no_grad(), capture(model, layers_of(model, layers)) as taken:
            out = model(ids, past_key_values=cache, use_cache=True)
        return {"logits": out.logits, **taken}, out.past_key_values

    return run


RIGHT = [
    (recording, attention)
    for recording in (
        "llama-a1/decode-f32", "llama-a1/decode-bf16", "llama-a1/padded-decode-f32",
        "mistral-b1/decode-f32", "qwen2-b2/decode-f32", "gemma2-a4/decode-f32",
        "gemma2-a4/decode-bf16", "gemma2-a4/chunked-f32", "zamba2-a6/decode-bf16",
    )
    for attention in ("eager", "sdpa")
    if attention == "eager" or "gemma2" not in recording  # whose softcap sdpa drops
]  # fmt: skip


@pytest.mark.parametrize(("recording", "attention"), RIGHT)
def test_right_engines_pass(recording: str, attention: str) -> None:
    model = transformers_model(recording, attention=attention)
    rows = "padded" in recording
    for function in (cached(model), cached(model, layers=False)):
        verdict = python_inspector.verify_model(function, recording, rows=rows)
        assert verdict.passed, str(verdict)


@pytest.mark.parametrize("recording", ["llama-a1/decode-bf16", "gemma2-a4/decode-f32"])
def test_one_line_is_enough(recording: str) -> None:
    """A function of ids alone: all tokens at once, and what has an attribute `logits`."""
    model = transformers_model(recording)
    with torch.no_grad():
        verdict = python_inspector.verify_model(lambda ids: model(ids), recording)
    assert verdict.passed, str(verdict)
    assert verdict.block == "model"


def test_a_wider_engine_of_a_16_bit_model_passes() -> None:
    model = transformers_model("llama-a1/decode-bf16", dtype=torch.float32)
    verdict = python_inspector.verify_model(whole(model), "llama-a1/decode-bf16")
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize(("seed", "index"), [(4711, 7), (31, 86)], ids=("well", "ill conditioned"))
def test_an_engine_that_rounds_more_than_the_recorded_run_is_right(
    seed: int, index: int, tmp_path: Path
) -> None:
    """Eager attention in 16 bits, held to a run with torch's fused one; a token at a time.

    The second one's layers are so ill conditioned that eager code is off by more than a tenth: in
    some steps, which are set aside.
    """
    from tests.panel.draw import draw

    drawn = draw(seed, index)
    assert drawn.dtype != "f32" and drawn.attention == "sdpa"
    model = drawn.model()
    with record(model, tmp_path / "r", What(blocks=()), Proof(chained=True)):
        run_model(model, drawn.plan())
    other = replace(drawn, attention="eager").model()
    rows = bool(drawn.left_pad)
    verdict = python_inspector.verify_model(cached(other), tmp_path / "r", rows=rows)
    assert verdict.passed, str(verdict)
    with torch.no_grad():
        other.model.layers[0].self_attn.o_proj.weight *= 1.1
    verdict = python_inspector.verify_model(cached(other), tmp_path / "r", rows=rows)
    assert verdict.status == "fail", str(verdict)


def theta(model: Any) -> None:
    model.model.rotary_emb.inv_freq *= 0.97


def no_window(model: Any) -> None:
    model.config.sliding_window = 1000
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None


def no_softcap(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None


def softcap_of_the_hidden_state(model: Any) -> None:
    """As one engine has it: tanh before the head instead of behind it."""
    cap, model.config.final_logit_softcapping = model.config.final_logit_softcapping, None
    model.model.norm.register_forward_hook(lambda _m, _i, out: torch.tanh(out / cap) * cap)


def weights_of_another_layer(model: Any) -> None:
    first, second = model.model.layers[0].mlp, model.model.layers[1].mlp
    model.model.layers[0].mlp, model.model.layers[1].mlp = second, first


FAULTS: list[tuple[str, Change, str, str]] = [
    ("gemma2-a4/decode-f32", theta, "model.layers.0#0", "lm_head:logits#0"),
    ("gemma2-a4/decode-f32", no_window, "model.layers.0#0", "lm_head:logits#0"),
    ("gemma2-a4/decode-bf16", no_window, "model.layers.0#0", "lm_head:logits#0"),
    ("gemma2-a4/decode-bf16", no_softcap, "model.layers.0#0", "lm_head:logits#0"),
    ("gemma2-a4/decode-f32", softcap_of_the_hidden_state, "model.norm#0", "lm_head:logits#0"),
    ("mistral-b1/decode-f32", no_window, "model.layers.0#0", "lm_head:logits#0"),
    ("llama-a1/decode-bf16", weights_of_another_layer, "model.layers.0#0", "lm_head:logits#0"),
]


@pytest.mark.parametrize(("recording", "fault", "layer", "logits"), FAULTS)
def test_broken_engines_fail_and_the_layer_is_named(
    recording: str, fault: Change, layer: str, logits: str
) -> None:
    model = transformers_model(recording)
    fault(model)
    with_layers = python_inspector.verify_model(cached(model), recording)
    alone = python_inspector.verify_model(cached(model, layers=False), recording)
    names = ["model.embed_tokens", "model.layers.0", "model.layers.1"]
    assert (with_layers.status, alone.status) == ("fail", "fail")
    assert with_layers.figures["chain"]["first_divergence"] == layer
    assert alone.figures["chain"]["first_divergence"] == logits
    first, second, third = (f"{path}#0" for path in names[:3])
    assert f"give the outputs of {first}, {second}, {third} and " in alone.reason
    assert "its error is" in alone.reason or "times its forecast" in alone.reason
    assert "allowed" in alone.reason
    assert "wrong on what it was given" in with_layers.reason


def test_a_fault_of_decode_steps_alone_is_found_there() -> None:
    """Positions that do not advance: prefill is right, the first decode step is not."""
    recording = "llama-a1/decode-f32"
    model = transformers_model(recording)

    def run(ids: torch.Tensor, step: Any) -> Any:
        nonlocal cache
        cache = None if step.first else cache
        positions = torch.arange(ids.shape[1])[None] + max(0, step.position - 1)
        with torch.no_grad(), capture(model, LAYERS) as taken:
            out = model(ids, past_key_values=cache, position_ids=positions, use_cache=True)
        cache = out.past_key_values
        return {"logits": out.logits, **taken}

    cache = None
    verdict = python_inspector.verify_model(run, recording)
    assert verdict.status == "fail"
    assert verdict.figures["chain"]["first_divergence"] == "model.layers.0#1"


def test_wrong_tokens_are_named(tmp_path: Path) -> None:
    """A window of 5 that is not there shows from token 5 on."""
    model = transformers_model("gemma2-a4/decode-f32")
    no_window(model)
    verdict = python_inspector.verify_model(cached(model), "gemma2-a4/decode-f32")
    assert verdict.reason.endswith("; tokens that are off: 5-10 of 0-10"), verdict.reason


def test_caches_of_the_engine_are_judged(tmp_path: Path) -> None:
    recording = "llama-a1/decode-f32"
    model = transformers_model(recording)

    def run(ids: torch.Tensor, cache: Any, spoil: bool = False) -> Any:
        with torch.no_grad():
            out = model(ids, past_key_values=cache, use_cache=True)
        stored = out.past_key_values.layers[1]
        if spoil:
            stored.values[:, :, 0] *= 1 + 2**-20  # a slot that is only to be read
        names = {"keys_after": stored.keys.clone(), "values_after": stored.values.clone()}
        place = "model.layers.1.self_attn:kv_cache"
        return {"logits": out.logits} | {f"{place}/{n}": v for n, v in names.items()}, (
            out.past_key_values
        )

    assert python_inspector.verify_model(run, recording).passed

    def spoilt(ids: torch.Tensor, cache: Any) -> Any:
        return run(ids, cache, spoil=cache is not None)

    verdict = python_inspector.verify_model(spoilt, recording)
    assert verdict.status == "fail" and "bytes of values_after changed" in verdict.reason


def test_nan_fails() -> None:
    recording = "llama-a1/decode-f32"
    model = transformers_model(recording)

    def run(ids: torch.Tensor) -> Any:
        with torch.no_grad():
            logits = model(ids).logits
        logits[0, 3, 7] = torch.nan
        return logits

    assert python_inspector.verify_model(run, recording).status == "fail"


def test_a_fresh_model_of_other_sizes(tmp_path: Path) -> None:
    """Sizes and a seed that nothing was tuned on; NumPy arrays."""
    model = tiny.build("gemma2", DTYPES["bf16"], seed=77)
    ids = torch.randint(3, 50, (1, 29), generator=torch.Generator().manual_seed(5))
    with record(model, tmp_path / "r", What(blocks=()), Proof(chained=True)), torch.no_grad():
        model(ids, use_cache=False)
    engine = transformers_model(tmp_path / "r")

    def run(ids: np.ndarray, scale: float = 1.0) -> np.ndarray:
        with torch.no_grad():
            return (engine(torch.from_numpy(ids)).logits * scale).float().numpy()

    assert python_inspector.verify_model(run, tmp_path / "r", arrays="numpy").passed
    verdict = python_inspector.verify_model(
        lambda ids: run(ids, 1.05), tmp_path / "r", arrays="numpy"
    )
    assert verdict.status == "fail"


def test_what_a_function_returns_is_checked() -> None:
    recording = "llama-a1/decode-f32"
    vocabulary = 61
    with pytest.raises(ValueError, match=r"has shape \(2, 3, 61\); the sequence has 15 tokens"):
        python_inspector.verify_model(lambda ids: torch.zeros(2, 3, vocabulary), recording)
    with pytest.raises(TypeError, match="expected a pair"):
        python_inspector.verify_model(lambda ids, cache: torch.zeros(2, 3, vocabulary), recording)
    with pytest.raises(ValueError, match=r"no chained output model\.layer\.0; did you mean"):
        python_inspector.verify_model(
            lambda ids: {"model.layer.0": torch.zeros(2, 15, 32)}, recording
        )
    verdict = None
    with pytest.raises(python_inspector.errors.HarnessError, match=r"logits#0/out.* has shape"):
        verdict = python_inspector.verify_model(lambda ids: torch.zeros(2, 15, 64), recording)
    assert verdict is None


def test_a_recording_without_a_chain_is_refused() -> None:
    with pytest.raises(FormatError, match="is no chained recording of a whole model"):
        python_inspector.verify_model(lambda ids: ids, "llama-a1/whole-f16")


def test_the_file_may_hold_logits_of_all_steps(tmp_path: Path) -> None:
    """As a program writes it that knows nothing of checkpoints."""
    import subprocess

    from python_inspector.native import find_harness

    recording = "llama-a1/decode-f32"
    model = transformers_model(recording)
    python_inspector.verify_model(whole(model), recording, keep=tmp_path / "kept.safetensors")
    kept = load_file(tmp_path / "kept.safetensors")
    steps = [kept[f"lm_head:logits#{step}/out"] for step in range(5)]

    def judged(tensors: dict[str, torch.Tensor]) -> subprocess.CompletedProcess[str]:
        save_file(tensors, tmp_path / "given.safetensors")
        command = [str(find_harness()), "judge", "--mode", "chained", recording]
        command += [str(tmp_path / "given.safetensors")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert judged({"logits": torch.cat(steps, 1)}).returncode == 0
    some = judged({"logits#0": steps[0], "logits#3": steps[3]})
    assert some.returncode == 8  # of a model that may go wrong in the others
    assert "blind: not given: logits#1, logits#2, logits#4; what was given is within" in some.stdout
    assert judged({"logits#3": steps[2]}).returncode == 1
    for tensors, words in [
        ({"logits": steps[0]}, "has shape [2, 11, 61]; the 5 steps of the recording have 15"),
        ({"logit#0": steps[0]}, "names no chained output"),
        ({"logits#0": steps[0].long()}, "is i64; expected f16, bf16, f32 or f64"),
        ({"logits#0": steps[0], "lm_head:logits#0/out": steps[0] * 1}, "is given twice"),
    ]:
        done = judged(tensors)
        assert done.returncode == 3 and words in done.stderr, done.stderr
