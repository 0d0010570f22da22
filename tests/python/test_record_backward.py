"""record(backward=True): gradients of the blocks of a model, recorded and judged."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from backward_of_blocks import FAULTS, Kernel, rms_norm
from recorded import DTYPES, built, ids
from safetensors.torch import load_file

from python_inspector import Proof, RecordError, Verdict, What, record, tiny, verify, verify_module
from python_inspector.cli.inspector import main
from python_inspector.format.validate import find_recordings, validate

RUNS = [(m, d) for d in DTYPES if d != "f16" for m in ("llama-a1", "gemma2-a4", "zamba2-a6")]
FAST = Proof(backward=True, spread=8, bugs=False)


def made(folder: Path, model: str, dtype: str, **what: Any) -> Path:
    module = tiny.build(model, DTYPES[dtype])
    out = folder / f"{model}-{dtype}"
    with record(module, out, What(**what), FAST), torch.no_grad():
        module(ids(module), use_cache=False)
    return out


@pytest.fixture(scope="module", params=RUNS, ids="-".join)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, dtype = request.param
    layer = 1 if model == "zamba2-a6" else 0  # a hybrid one
    return made(tmp_path_factory.mktemp("backward"), model, dtype, layers=(layer,))


def document(recording: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((recording / "recording.json").read_text())
    return read


def backwards(recording: Path) -> list[dict[str, Any]]:
    return [c for c in document(recording)["checkpoints"] if c["block"].endswith(".backward")]


def judged(recording: Path, kernel: Kernel, block: str) -> list[Verdict]:
    return verify(kernel, recording, block=f"{block}.backward", margins=False)


@pytest.mark.sampled
def test_what_was_recorded_passes(recording: Path, harness: Path) -> None:
    assert find_recordings(recording) == [recording] and validate(recording) == []
    assert document(recording)["version"] == 3
    known = {c["id"]: c for c in backwards(recording)}
    tensors = load_file(recording / "tensors.safetensors")

    def itself(inputs: Any, weights: Any, params: Any, call: Any) -> Any:
        outputs = known[call.checkpoint]["outputs"]
        return {name: tensors[it["tensor"]] for name, it in outputs.items()}

    verdicts = verify(itself, recording, "/backward$", margins=False)
    assert len(verdicts) == len(known) > 15
    products = [it["outputs"].keys() for it in known.values() if it["block"] == "matmul.backward"]
    assert all(names == {"d_a", "d_b"} for names in products)  # keys are stored the other way round
    assert not [str(it) for it in verdicts if not it.passed]


@pytest.mark.sampled
def test_backwards_by_hand_are_right_and_their_faults_are_seen(
    recording: Path, harness: Path
) -> None:
    kinds = {c["block"].partition(".")[0] for c in backwards(recording)}
    tried = {name: it for name, it in FAULTS.items() if it[0] in kinds}
    assert len(tried) >= 4
    for name, (block, right, wrong) in tried.items():
        assert not [str(it) for it in judged(recording, right, block) if not it.passed], name
        assert {it.status for it in judged(recording, wrong, block)} == {"fail"}, name


# A backward as autograd makes it of a forward.


class Norm(torch.autograd.Function):
    """rms_norm as LLaMA has it, in float32 inside."""

    mean = 1.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        wide = x.float()
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return weight * (wide * rstd).to(x.dtype)

    @classmethod
    def backward(cls, ctx: Any, g: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        params = {"eps": ctx.eps, "weight_offset": 0, "rounding": "before"}
        inputs = {"x": x, "cotangent.out": g}
        made = rms_norm(inputs, {"weight": weight}, params, mean=cls.mean)
        return made["d_x"].to(x.dtype), made["d_weight"].to(x.dtype), None


class Wrong(Norm):
    mean = 0.9


def norm(inputs: Any, weights: Any, params: Any) -> torch.Tensor:
    made: torch.Tensor = Norm.apply(inputs["x"], weights["weight"], params["eps"])
    return made


def wrong_norm(inputs: Any, weights: Any, params: Any) -> torch.Tensor:
    made: torch.Tensor = Wrong.apply(inputs["x"], weights["weight"], params["eps"])
    return made


class NormModule(torch.nn.Module):
    function = Norm

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.function.apply(x, self.gain, 1e-5)
        return made


class WrongModule(NormModule):
    function = Wrong


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Norms, products and attention of one layer, in bf16."""
    blocks = ("rms_norm", "linear", "sdpa", "rotary", "glu_mlp")
    return made(tmp_path_factory.mktemp("small"), "llama-a1", "bf16", layers=(0,), blocks=blocks)


def statuses(verdicts: list[Verdict]) -> set[str]:
    return {it.status for it in verdicts}


def test_a_function_is_judged_by_its_gradients(small: Path, harness: Path) -> None:
    verdicts = verify(norm, small, block="rms_norm", backward=True, margins=False)
    assert {it.block for it in verdicts} == {"rms_norm.backward"} and len(verdicts) == 3
    assert statuses(verdicts) == {"pass"}
    assert statuses(verify(wrong_norm, small, block="rms_norm", margins=False)) == {"pass"}
    failed = verify(wrong_norm, small, block="rms_norm", backward=True, margins=False)
    assert statuses(failed) == {"fail"}
    assert all(it.reason.startswith("d_x: ") for it in failed)


def test_a_module_is_judged_by_its_gradients(small: Path, harness: Path) -> None:
    asked = {"names": {"gain": "weight"}, "backward": True, "margins": False}
    assert statuses(verify_module(NormModule(), small, "rms_norm", **asked)) == {"pass"}
    assert statuses(verify_module(WrongModule(), small, "rms_norm", **asked)) == {"fail"}


def test_what_does_not_go_back_is_a_gradient_of_zero_or_an_error(
    small: Path, harness: Path
) -> None:
    def detached(inputs: Any, weights: Any, params: Any, call: Any) -> torch.Tensor:
        assert call.block == "rms_norm" and "/" not in call.checkpoint
        return norm(inputs, weights, params).detach()

    asked = {"backward": True, "margins": False}
    assert statuses(verify(detached, small, block="rms_norm", **asked)) == {"fail"}
    (verdict, *_) = verify(lambda i, w, p: {"k": i["q"]}, small, block="rotary", **asked)
    assert verdict.status == "error" and "returned no q" in verdict.reason
    with pytest.raises(ValueError, match="arrays is 'numpy'"):
        verify(norm, small, arrays="numpy", backward=True)


# The recording, and the harness on it.


def test_gradients_are_named_by_what_they_are_of(small: Path) -> None:
    found = {c["id"]: c for c in backwards(small)}
    sdpa = found["model.layers.0.self_attn:sdpa#0/backward"]
    assert (sdpa["block"], sdpa["path"], sdpa["call"]) == (
        "sdpa.backward", "model.layers.0.self_attn", 0)  # fmt: skip
    assert list(sdpa["outputs"]) == ["d_q", "d_k", "d_v"]
    assert sdpa["outputs"]["d_k"]["axes"] == sdpa["inputs"]["k"]["axes"]
    rotary = found["model.layers.0.self_attn:rotary#0/backward"]
    assert {"cos", "sin", "cotangent.q", "cotangent.k"} <= rotary["inputs"].keys()
    assert rotary["remarks"] == ["not judged: d_cos (a table)", "not judged: d_sin (a table)"]
    mlp = found["model.layers.0.mlp#0/backward"]
    assert mlp["outputs"]["d_gate_proj.weight"]["labels"] == ["out_channel", "in_channel"]
    assert mlp["weights"].keys() == {f"{name}_proj.weight" for name in ("gate", "up", "down")}
    assert document(small)["provenance"]["notes"]["cotangents"]["seed"] == 0
    cotangent = load_file(small / "tensors.safetensors")[mlp["inputs"]["cotangent.out"]["tensor"]]
    assert cotangent.unique().numel() > 100 and abs(cotangent.float().std() - 1) < 0.2


def run_harness(*words: Any) -> tuple[int, str]:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def results_of(file: Path) -> dict[str, dict[str, Any]]:
    """By checkpoint."""
    lines = map(json.loads, file.read_text().splitlines())
    return {it["checkpoint"]: it for it in lines if it["type"] == "checkpoint"}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("emu:32", marks=pytest.mark.host), "oracle"]
)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parts"])
def test_devices_make_the_gradients(
    recording: Path, harness: Path, tmp_path: Path, device: str, fused: bool
) -> None:
    out = tmp_path / "results.json"
    words = ("--fixture", recording, "--direction", "backward", "--device", device, "--json", out)
    code, _ = run_harness(harness, *words, *(() if fused else ("--no-fuse",)))
    made = results_of(out)
    assert made.keys() == {it["id"] for it in backwards(recording)}
    assert not [(it, r["status"], r["reason"]) for it, r in made.items() if r["status"] != "pass"]
    assert code == 0


def test_the_harness_selects_a_direction(small: Path, harness: Path) -> None:
    code, text = run_harness(harness, "--device", "cpu", "--fixture", small, "--direction=forward")
    assert code == 0 and "unsupported" not in text
    wider = ("--direction=backward", "--dtype", "f32")
    code, text = run_harness(harness, "--device", "cpu", "--fixture", small, *wider)
    assert code != 0 and "what the recorded run shows, in bf16 or f64" in text
    code, text = run_harness(harness, "--fixture", small, "--direction", "sideways")
    assert code != 0 and "--direction" in text


def edited(recording: Path, tmp_path: Path, change: Any) -> list[str]:
    """What is found where the first checkpoint of gradients is changed."""
    folder = tmp_path / "edited"
    if not folder.exists():
        shutil.copytree(recording, folder)
    made = document(recording)
    change(next(c for c in made["checkpoints"] if c["block"] == "rms_norm.backward"), made)
    (folder / "recording.json").write_text(json.dumps(made))
    return validate(folder)


def test_the_reader_knows_the_names(small: Path, tmp_path: Path, harness: Path) -> None:
    def other(word: str, change: Any) -> None:
        (finding,) = edited(small, tmp_path, change)
        assert word in finding

    assert edited(small, tmp_path, lambda c, made: None) == []
    other("there is no cotangent", lambda c, made: c["inputs"].pop("cotangent.out"))
    other(
        "is of no output of a rms_norm",
        lambda c, made: c["inputs"].update({"cotangent.y": c["inputs"]["cotangent.out"]}),
    )
    other(
        "is the gradient of no input or weight",
        lambda c, made: c["outputs"].update(d_y=c["outputs"]["d_x"]),
    )
    other("path, function and call give", lambda c, made: c.update(id=c["id"][:-9]))
    other("params: eps is missing", lambda c, made: c["params"].pop("eps"))
    every = edited(small, tmp_path, lambda c, made: made.update(version=2))
    assert any("belongs to version 3, version is 2" in finding for finding in every)


def test_a_recording_without_gradients_is_as_before(tmp_path: Path) -> None:
    model = built("llama-a1")
    with record(model, tmp_path / "plain", proof=Proof.of("fast")), torch.no_grad():
        model(ids(model))
    assert document(tmp_path / "plain")["version"] == 2


def test_the_first_recorded_call_has_gradients(tmp_path: Path, harness: Path) -> None:
    """Also where it is not the first of all, with a cache, and on the command line."""
    out = tmp_path / "made"
    words = ["record", "--model", "tiny:llama-a1", "--tokens", "5", "--steps", "2"]
    words += ["--layers", "0", "--blocks", "attention,rms_norm", "--calls", "1-2", "--backward"]
    assert main([*words, "--effort", "fast", "--out", str(out)]) == 0
    found = {c["id"]: c["step"] for c in backwards(out)}
    assert found["model.layers.0.self_attn#1/backward"] == 1
    assert set(found.values()) == {1}


def test_rows_without_a_key_are_left_out_of_the_sums(tmp_path: Path, harness: Path) -> None:
    """One left-padded row would leave nothing of a weight's gradient to judge."""
    model = built("llama-a1", torch.bfloat16)
    mask = torch.ones(2, 15, dtype=torch.long)
    mask[0, :3] = 0
    out = tmp_path / "padded"
    what = What(layers=(0,), blocks=("attention", "decoder_layer"))
    with record(model, out, what, FAST), torch.no_grad():
        model(ids(model), attention_mask=mask, use_cache=False)
    found = backwards(out)
    assert len(found) == 2
    for checkpoint in found:
        assert any("is 0 in 3 of 30 rows" in text for text in checkpoint["remarks"])
        assert all("valid" not in it for n, it in checkpoint["outputs"].items() if "weight" in n)


def test_gradients_need_what_judges_them(tmp_path: Path, capsys: Any) -> None:
    model = tiny.build("llama-a1")
    for proof in (Proof(backward=True, spread=0), Proof(backward=True, oracle=False)):
        with (
            pytest.raises(RecordError, match="backward needs"),
            record(model, tmp_path / "no", proof=proof),
        ):
            pass
    words = ["record", "--model", "tiny:llama-a1", "--tokens", "5", "--backward"]
    assert main([*words, "--effort", "none", "--out", str(tmp_path / "no")]) == 2
    assert "--backward needs" in capsys.readouterr().err


# A whole model from its loss.


@pytest.mark.parametrize(
    "model", ["llama-a1", pytest.param("gemma2-a4", marks=pytest.mark.nightly)]
)
def test_a_whole_model_from_its_loss(tmp_path: Path, harness: Path, model: str) -> None:
    """Gemma2 ties its head to the embedding: one gradient of both; its frequencies and its scale of
    embeddings are as the recorded run rounded them."""
    module, out = built(model, torch.bfloat16), tmp_path / model
    proof = replace(FAST, loss="cross_entropy")
    with record(module, out, What(layers=(), blocks=("rms_norm",)), proof), torch.no_grad():
        module(ids(module))
    module.cpu()  # where verify() hands out what was recorded
    assert validate(out) == []
    found = {c["id"]: c for c in backwards(out)}["model:loss#0/backward"]
    assert found["outputs"].keys() == {f"d_{name}" for name, _ in module.named_parameters()}
    tensors = load_file(out / "tensors.safetensors")
    labels = tensors[found["inputs"]["labels"]["tensor"]]
    assert 0 < int((labels == -100).sum()) < labels.numel() / 2
    assert tensors[found["inputs"]["cotangent.out"]["tensor"]] != 1

    results = tmp_path / "results.json"  # native: from the loss through all layers
    words = ("--fixture", out, "--direction", "backward", "--json", results)
    for device, *parts in (("oracle",), ("cpu",), ("cpu", "--no-fuse")):
        run_harness(harness, *words, "--device", device, *parts)
        made = results_of(results)
        assert made["model:loss#0/backward"]["status"] == "pass", (device, parts)

    def loss(factor: float) -> Kernel:
        def forward(inputs: Any, weights: Any, params: Any) -> Any:
            given = {name: inputs[name] for name in ("input_ids", "labels")}
            call = torch.func.functional_call
            made = call(module, weights, (), given | {"use_cache": False}, tie_weights=False).loss
            return made * factor + (made * (1 - factor)).detach()

        return forward

    asked: dict[str, Any] = {"block": "module", "margins": False}
    assert statuses(verify(loss(1), out, **asked)) == {"pass"}
    assert statuses(verify(loss(1), out, backward=True, **asked)) == {"pass"}
    assert statuses(verify(loss(1.05), out, **asked)) == {"pass"}
    assert statuses(verify(loss(1.05), out, backward=True, **asked)) == {"fail"}


@pytest.fixture(scope="module")
def loss_of_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, out = built("llama-a1", torch.float32), tmp_path_factory.mktemp("loss") / "llama"
    assert len(module.model.layers) == 3
    proof = replace(FAST, loss="cross_entropy")
    with record(module, out, What(layers=(), blocks=("rms_norm",)), proof), torch.no_grad():
        module(ids(module))
    return out


CHAIN = ("--direction", "backward", "--mode", "chained")


@pytest.mark.host
@pytest.mark.parametrize(
    ("call", "first", "before"),
    [
        (1, "layers.2.self_attn.o_proj", "layers.2.post_attention_layernorm.weight"),
        (4, "layers.0.mlp.down_proj", "layers.1.input_layernorm.weight"),
        (7, None, None),
    ],
)
def test_a_chain_of_gradients_says_where(
    loss_of_llama: Path,
    harness: Path,
    plugins: Path,
    tmp_path: Path,
    call: int,
    first: str | None,
    before: str | None,
) -> None:
    """One norm of one layer has a wrong gradient: what comes before it, from the loss back, passes,
    and the module behind it is named."""
    results, plugin = tmp_path / "results.json", plugins / f"norm_backward_{call}.so"
    words = ("--fixture", loss_of_llama, *CHAIN, "--json", results, "--device", "cpu")
    code, said = run_harness(harness, *words, "--plugin", plugin)
    (result,) = results_of(results).values()
    chain = result["chain"]
    order = [row["checkpoint"] for row in chain["rows"]]
    assert order[0] == "lm_head" and order[-1] == "model.embed_tokens" and len(order) == 30
    assert order.index("model.layers.2.mlp.down_proj") < order.index("model.layers.2.mlp.up_proj")
    bad = {row["checkpoint"] for row in chain["rows"] if row["diagnosis"] != "clean"}
    if first is None:
        assert code == 0 and not bad and chain["culprit"] is None, said
        return
    assert code == 1 and result["status"] == "fail", said
    assert chain["first_divergence"] == chain["culprit"] == f"model.{first}"
    assert bad == set(order[order.index(f"model.{first}") :]), bad
    assert f"the first beyond its limit is d_model.{first}.weight" in result["reason"]
    assert any(f"before it is d_model.{before}" in line for line in result["details"])
    assert "wrong here" in said and "inherited" in said


@pytest.mark.host
def test_chains_of_gradients_are_asked_for(
    loss_of_llama: Path, harness: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    words = ("--fixture", loss_of_llama, "--direction", "backward", "--json", results)
    code, said = run_harness(harness, *words, "--device", "cpu", "--mode", "chained")
    assert code == 0 and set(results_of(results)) == {"model:loss#0/backward"}, said
    assert "d_lm_head.weight" in said and "d_model.layers.0." in said  # a row a layer
    code, said = run_harness(harness, *words, "--device", "cpu", "--mode", "both")
    assert code == 0 and len(results_of(results)) > 1, said
    without = made(tmp_path, "llama-a1", "f32", layers=(0,))
    code, said = run_harness(harness, "--fixture", without, *CHAIN, "--device", "cpu")
    assert code == 2 and "has gradients of a loss (inspector record --backward" in said


def test_a_loss_goes_with_gradients(tmp_path: Path, capsys: Any) -> None:
    words = ["record", "--model", "tiny:llama-a1", "--tokens", "5", "--out", str(tmp_path / "no")]
    assert main([*words, "--loss", "cross_entropy"]) == 2
    assert "--loss cross_entropy goes with --backward" in capsys.readouterr().err
    model = tiny.build("llama-a1")
    for asked, said in (
        (Proof(loss="cross_entropy"), "with backward=True"),
        (Proof(backward=True, loss="cross_entropy"), "takes no labels"),
    ):
        inner = model if asked.backward is False else model.model
        with pytest.raises(RecordError, match=said), record(inner, tmp_path / "no", proof=asked):
            pass
