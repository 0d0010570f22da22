"""Contracts for what happens inside, stated by a recording: verify(), `harness judge`, plugins."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import verify as run_verify
from recorded import asked
from test_contracts_inside import accumulated, delta, operands, reduced
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from python_inspector import RecordError, Verdict, record, verify
from python_inspector.cli.inspector import main
from python_inspector.errors import HarnessError
from python_inspector.format.contract_words import INSIDE
from python_inspector.format.show import show
from python_inspector.format.validate import validate
from python_inspector.recorder.one_call import OneCallRecording
from python_inspector.trace import products

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

SIZES = {
    "num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 160, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "initializer_range": 0.08, "rms_norm_eps": 0.02,
}  # fmt: skip
BLOCKS = ["linear", "sdpa", "rms_norm", "glu_mlp"]
Kernel = Callable[[dict[str, Any], dict[str, Any], Mapping[str, Any]], Any]


def recorded(
    out: Path, contract: str | None, dtype: torch.dtype = torch.bfloat16, **options: Any
) -> Path:
    """A llama whose attention is torch's own."""
    torch.manual_seed(3)
    config = AutoConfig.for_model("llama", **SIZES)
    how = {"attn_implementation": "sdpa", "dtype": dtype}
    model = AutoModelForCausalLM.from_config(config, **how).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.5, 1.5)
    ids = torch.randint(0, 96, (2, 48), generator=torch.Generator().manual_seed(4))
    options = {"blocks": BLOCKS} | options
    with record(model, *asked(out, contract=contract, **options)), torch.no_grad():
        model(ids)
    assert validate(out) == []
    return out


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], Path]:
    """By the contract, each recorded once."""
    folder, made = tmp_path_factory.mktemp("contracts"), dict[str | None, Path]()

    def of(contract: str | None) -> Path:
        if contract not in made:
            dtype = torch.float32 if "tf32" in str(contract) else torch.bfloat16
            made[contract] = recorded(folder / str(contract), contract, dtype)
        return made[contract]

    return of


def linear(inputs: dict[str, Any], weights: dict[str, Any], params: Any) -> Any:
    return reduced(inputs["x"], weights["weight"])


def linear_gain(inputs: dict[str, Any], weights: dict[str, Any], params: Any) -> Any:
    return reduced(inputs["x"], weights["weight"], 1.02)


def heads(inputs: dict[str, Any], by: Callable[[torch.Tensor, int], torch.Tensor]) -> Any:
    """q, and k and v for each of its heads; a token sees those before it."""
    q, k, v = (inputs[name] for name in "qkv")
    return q, *(by(t, q.shape[1] // k.shape[1]) for t in (k, v))


def sdpa(inputs: dict[str, Any], weights: Any, params: Any) -> Any:
    q, k, v = heads(inputs, lambda t, n: t.repeat_interleave(n, 1))
    return token_by_token(q, k, v, params["scale"])


def sdpa_gain(inputs: dict[str, Any], weights: Any, params: Any) -> Any:
    return (sdpa(inputs, weights, params).float() * 1.02).bfloat16()


def sdpa_wrong_head(inputs: dict[str, Any], weights: Any, params: Any) -> Any:
    q, k, v = heads(inputs, lambda t, n: t.repeat(1, n, 1, 1))
    return token_by_token(q, k, v, params["scale"])


def token_by_token(q: Any, k: Any, v: Any, scale: float) -> torch.Tensor:
    rows = [
        accumulated(q[..., i : i + 1, :], k[..., : i + 1, :], v[..., : i + 1, :], scale)
        for i in range(q.shape[-2])
    ]
    return torch.cat([row[..., :1, :] for row in rows], -2).transpose(1, 2)


def norm(inputs: dict[str, Any], weights: dict[str, Any], params: Any, times: float = 1.0) -> Any:
    x = inputs["x"].float()
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + times * params["eps"])
    return weights["weight"] * (x * scale).bfloat16()


def norm_eps(inputs: dict[str, Any], weights: dict[str, Any], params: Any) -> Any:
    return norm(inputs, weights, params, 10)


def verdicts(kernel: Kernel, folder: Path, block: str, **options: Any) -> list[Verdict]:
    return verify(kernel, folder, block=block, margins=False, **options)


CASES: dict[tuple[str, str], tuple[Kernel, list[Kernel]]] = {
    ("reduce-16", "linear"): (linear, [linear_gain]),
    ("sums-16", "sdpa"): (sdpa, [sdpa_gain, sdpa_wrong_head]),
}


@pytest.mark.parametrize(("word", "block"), CASES)
def test_verify_takes_what_the_recording_allows(
    recordings: Callable[[str | None], Path], word: str, block: str
) -> None:
    kernel, wrong = CASES[word, block]
    assert all(v.status == "fail" for v in verdicts(kernel, recordings(None), block))
    folder = recordings(f"eager+{word}")
    for contract in (None, word, f"inferred+{word}"):
        for verdict in verdicts(kernel, folder, block, contract=contract):
            assert verdict.passed, verdict
            assert verdict.figures["contract"].endswith(f"+{word}")
            assert f"by a looser contract: {word}" in str(verdict)
    for other in wrong:
        assert all(v.status == "fail" for v in verdicts(other, folder, block))


@pytest.mark.parametrize("word", ["reduce-16", "sums-16"])
def test_what_is_asked_for_changes_nothing_else(
    recordings: Callable[[str | None], Path], word: str
) -> None:
    folder = recordings(f"eager+{word}")
    for verdict in verdicts(norm, folder, "rms_norm"):
        assert verdict.passed and not verdict.looser
        assert not verdict.figures["contract"].endswith(word)
    assert all(v.status == "fail" for v in verdicts(norm_eps, folder, "rms_norm"))


def test_float32_weights_that_are_multiplied_in_16_bits(tmp_path: Path) -> None:
    def kernel(inputs: dict[str, Any], weights: Any, params: Any) -> Any:
        return delta(inputs["q"], inputs["k"], inputs["v"], rounds=True)

    def bad(inputs: dict[str, Any], weights: Any, params: Any) -> Any:
        return delta(inputs["q"], inputs["k"], inputs["v"].roll(1, 1), rounds=True)

    for words, status in ((), "fail"), (("p-16",), "pass"):
        folder = tmp_path / f"r{len(words)}"
        calls = OneCallRecording(delta, weights={}, inside=frozenset(words))
        calls.add((operands("p-16"), {}))
        assert calls.save(folder)
        assert validate(folder) == []
        [verdict] = verify(kernel, folder)
        assert verdict.status == status, verdict
        assert verdict.looser == words
        assert [v.status for v in verify(bad, folder)] == ["fail"]


def test_a_plugin_is_judged_by_what_the_recording_states(
    recordings: Callable[[str | None], Path], plugins: Path, tmp_path: Path
) -> None:
    def run(contract: str | None, name: str) -> Any:
        options = ["--device", "cpu", "--block", "linear", "--fixture", str(recordings(contract))]
        return run_verify(tmp_path, *options, "--plugin", str(plugins / f"{name}.so"))

    assert {r["status"] for r in run(None, "linear_16").results} == {"fail"}
    asked = run("eager+reduce-16", "linear_16")
    assert asked.code == 0, asked.stdout
    assert {r["status"] for r in asked.results} == {"pass"}
    assert all("+reduce-16" in r["contract"] for r in asked.results)
    assert "judged by looser contracts: reduce-16" in asked.stdout
    wrong = run("eager+reduce-16", "linear_16_gain")
    assert {r["status"] for r in wrong.results} == {"fail"}


def test_the_projects_own_kernels_pass_by_it(
    recordings: Callable[[str | None], Path], tmp_path: Path
) -> None:
    for word in ("reduce-16", "sums-16"):
        run = run_verify(tmp_path, "--device", "cpu", "--fixture", str(recordings(f"eager+{word}")))
        assert {r["status"] for r in run.results} <= {"pass", "blind"}, run.stdout
        other = run_verify(
            tmp_path, "--device", "cpu", "--dtype", "f32", "--fixture",
            str(recordings(f"eager+{word}")),
        )  # fmt: skip
        assert all("+" not in r["contract"] for r in other.results)  # in float32 nothing is allowed


def in_tf32(change: Callable[[torch.Tensor], torch.Tensor]) -> Kernel:
    def kernel(inputs: dict[str, Any], weights: dict[str, Any], params: Any) -> Any:
        return functional.linear(change(inputs["x"]), change(weights["weight"]))

    return kernel


def test_products_in_tf32(recordings: Callable[[str | None], Path], tmp_path: Path) -> None:
    plain = recorded(tmp_path / "plain", None, torch.float32, blocks=["linear"])
    folder = recordings("products-tf32")
    for change in (products.rounded_to_tf32, products.cut_to_tf32):
        assert all(v.status == "fail" for v in verdicts(in_tf32(change), plain, "linear"))
        assert all(v.passed for v in verdicts(in_tf32(change), folder, "linear"))
    assert all(v.passed for v in verdicts(in_tf32(lambda t: t), folder, "linear"))
    narrow = in_tf32(lambda t: t.bfloat16().float())
    assert all(v.status == "fail" for v in verdicts(narrow, folder, "linear"))
    assert (
        "+products-tf32" in verdicts(in_tf32(lambda t: t), folder, "linear")[0].figures["contract"]
    )


def test_it_is_shown(recordings: Callable[[str | None], Path]) -> None:
    folder = recordings("eager+reduce-16")
    assert "  contract  reduce-16 in " in show(folder)
    assert "  inside   reduce-16: parts of a product" in show(folder, "q_proj")
    assert "inside" not in show(folder, "input_layernorm")
    assert "contract  " not in show(recordings(None))


def test_what_the_recording_does_not_have(
    recordings: Callable[[str | None], Path], harness: Path, tmp_path: Path
) -> None:
    words = "record it with `inspector record --contract eager\\+sums-16`"
    with pytest.raises(HarnessError, match=f"do nothing of the kind: {words}"):
        verdicts(linear, recordings(None), "linear", contract="eager+sums-16")
    with pytest.raises(HarnessError, match=f"do reduce-16: {words}"):
        verdicts(linear, recordings("eager+reduce-16"), "linear", contract="sums-16")
    known = f"one of inferred, eager, fused, flash, and any of {', '.join(INSIDE)}, joined by"
    with pytest.raises(ValueError, match=known):
        verdicts(linear, recordings(None), "linear", contract="sums16")
    done = subprocess.run(
        [harness, "judge", recordings(None), tmp_path / "y", "--contract", "sums16"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, known in done.stderr) == (2, True), done.stderr


def test_what_cannot_be_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for contract, dtype, options, words in (
        ("sums-16", torch.float32, {}, "no parameter of the model is bfloat16 or float16"),
        ("products-tf32", torch.bfloat16, {}, "no parameter of the model is float32"),
        ("fused+sums-16", torch.bfloat16, {}, "'fused' is none; one of inferred, eager, and any"),
        ("sums-16", torch.bfloat16, {"spread": 0}, "spread above 0"),
    ):
        with pytest.raises(RecordError, match=words):
            recorded(tmp_path / "r", contract, dtype, **options)
    command = ["record", "--model", "tiny:llama", "--out", str(tmp_path / "r"), "--contract"]
    with pytest.raises(SystemExit):
        main([*command, "sum-16"])
    assert "any of sums-16, p-16" in capsys.readouterr().err
    assert main([*command, "sums-16", "--effort", "none"]) == 2
    refused = "--contract sums-16 is what simulated kernels do: drop --effort none"
    assert refused in capsys.readouterr().err


def test_a_word_that_changes_nothing_is_a_warning(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "r", "sums-16", blocks=["rms_norm"])
    document = json.loads((folder / "recording.json").read_text())
    warnings = document["provenance"]["warnings"]
    assert any("sums-16, which changes nothing that is recorded" in text for text in warnings)


Edit = Callable[[dict[str, Any]], None]


def edits() -> dict[str, Edit]:
    def unknown(document: dict[str, Any]) -> None:
        document["contracts"]["eager+reduce-16"]["inside"] = ["reduce-8"]

    def twice(document: dict[str, Any]) -> None:
        document["contracts"]["eager+reduce-16"]["inside"] = ["reduce-16", "sums-16"]

    def traceless(document: dict[str, Any]) -> None:
        for checkpoint in document["checkpoints"]:
            checkpoint.pop("trace", None)

    return {"unknown": unknown, "twice": twice, "traceless": traceless}


@pytest.mark.parametrize("name", edits())
def test_contracts_that_are_none(
    recordings: Callable[[str | None], Path], tmp_path: Path, name: str
) -> None:
    document = json.loads((recordings("eager+reduce-16") / "recording.json").read_text())
    edits()[name](document)
    for file in recordings("eager+reduce-16").iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "recording.json").write_text(json.dumps(document))
    assert any("contract" in finding for finding in validate(tmp_path))
    with pytest.raises(HarnessError, match="contract"):
        verdicts(linear, tmp_path, "linear")
