"""Contracts for what happens inside, of whole models: chained recordings state them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import verify as run_verify
from safetensors.torch import save_file
from test_contracts_inside import reduced
from test_contracts_recorded import SIZES, token_by_token
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from python_inspector import Verdict, record, verify_model
from python_inspector.engines.capture import capture
from python_inspector.format.validate import validate
from python_inspector.taps.options import Proof, What

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

LAYERS = {name: name for name in ("model.embed_tokens", "model.layers.{}", "model.norm")}
Recorded = Callable[[str | None], Path]


def llama() -> Any:
    torch.manual_seed(3)
    config = AutoConfig.for_model("llama", **SIZES | {"num_hidden_layers": 3})
    how = {"attn_implementation": "sdpa", "dtype": torch.bfloat16}
    model = AutoModelForCausalLM.from_config(config, **how).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """By the contract, each recorded once: a prefill and a step."""
    folder, made = tmp_path_factory.mktemp("chains"), dict[str | None, Path]()
    ids = torch.randint(0, 96, (2, 24), generator=torch.Generator().manual_seed(4))

    def of(contract: str | None) -> Path:
        if contract not in made:
            made[contract] = out = folder / str(contract)
            model = llama()
            with (
                record(model, out, What(blocks=()), Proof(contract=contract, chained=True)),
                torch.no_grad(),
            ):
                cache = model(ids).past_key_values
                model(ids[:, :1], past_key_values=cache)
            assert validate(out) == []
        return made[contract]

    return of


def linears_reduced(model: Any, gain: float) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            weight = module.weight
            module.forward = lambda x, weight=weight: reduced(x, weight, gain)


@contextmanager
def attention_accumulated(gain: float) -> Iterator[None]:
    """torch's attention with a 16-bit accumulator."""

    def attend(q: Any, k: Any, v: Any, *_: Any, is_causal: bool = False, **given: Any) -> Any:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        if not is_causal:  # one token, which sees all
            padding = q[..., :1, :].expand(-1, -1, k.shape[-2] - 1, -1)
            q = torch.cat([padding, q], -2)
        out = token_by_token(q, k, v, gain * given["scale"]).transpose(1, 2)
        return out if is_causal else out[..., -1:, :]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "scaled_dot_product_attention", attend)
        yield


def verdict_on(model: Any, folder: Path) -> Verdict:
    def run(ids: torch.Tensor, cache: Any) -> Any:
        with torch.no_grad(), capture(model, LAYERS) as taken:
            out = model(ids, past_key_values=cache, use_cache=True)
        return {"logits": out.logits, **taken}, out.past_key_values

    return verify_model(run, folder)


def chained_limit(verdict: Verdict) -> float:
    """Of the first layer."""
    rows = verdict.figures["chain"]["rows"]
    return next(float(r["chained_limit"]) for r in rows if r["checkpoint"] == "model.layers.0#0")


@pytest.mark.parametrize(("gain", "status"), [(1.0, "pass"), (1.02, "fail")])
def test_linears_of_a_whole_model(recordings: Recorded, gain: float, status: str) -> None:
    model = llama()
    linears_reduced(model, gain)
    verdict = verdict_on(model, recordings("reduce-16"))
    assert verdict.status == status, verdict
    assert verdict.looser == ("reduce-16",)
    unasked = verdict_on(model, recordings(None))
    assert 1.5 * chained_limit(unasked) < chained_limit(verdict)
    assert unasked.looser == ()


@pytest.mark.parametrize(("gain", "status"), [(1.0, "pass"), (1.5, "fail")])
def test_attention_of_a_whole_model(recordings: Recorded, gain: float, status: str) -> None:
    with attention_accumulated(gain):
        verdict = verdict_on(llama(), recordings("eager+sums-16"))
    assert verdict.status == status, verdict


def test_a_chain_of_a_device(recordings: Recorded, plugins: Path, tmp_path: Path) -> None:
    def run(contract: str | None, name: str) -> Any:
        options = ["--device", "cpu", "--mode", "chained", "--fixture", str(recordings(contract))]
        return run_verify(tmp_path, *options, "--plugin", str(plugins / f"{name}.so"))

    [unasked] = run(None, "linear_16").results
    assert (unasked["status"], unasked["looser_contracts"]) == ("fail", [])
    asked = run("reduce-16", "linear_16")
    assert asked.code == 0, asked.stdout
    assert asked.results[0]["looser_contracts"] == ["reduce-16"]
    assert [r["status"] for r in run("reduce-16", "linear_16_gain").results] == ["fail"]


def test_layers_state_it(recordings: Recorded) -> None:
    document = json.loads((recordings("reduce-16") / "recording.json").read_text())
    stated = {c["block"] for c in document["checkpoints"] if "reduce-16" in c["contract"]}
    assert stated == {"decoder_layer", "lm_head"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--contract", "fused"], "leave out fused, or judge its blocks without --mode chained"),
        (["--contract", "inferred+sums-16"], "--contract has sums-16, but the simulated kernels"),
        (["--partial"], "leave out --partial and --no-margins"),
    ],
)
def test_what_a_chain_cannot_be_asked_is_refused(
    options: list[str], said: str, harness: Path, tmp_path: Path
) -> None:
    save_file({"logits": torch.zeros(1)}, outputs := tmp_path / "outputs.safetensors")
    recording = Path(__file__).parents[2] / "fixtures" / "llama-a1" / "decode-f32"
    command = [harness, "judge", "--mode", "chained", recording, outputs, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr
