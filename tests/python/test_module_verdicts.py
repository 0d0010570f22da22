"""Verdicts on calls that have no native block: from the recording alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import python_inspector
from python_inspector import RecordWarning, Verdict, record, verify
from python_inspector.format.operands import output_of, save
from python_inspector.format.validate import validate
from python_inspector.recorder.one_call import OneCallRecording

torch.set_num_threads(1)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


Edit = Callable[[Any, dict[str, Any]], None]


def recorded(out: Path, like: Any, x: torch.Tensor, edit: Edit = lambda writer, c: None) -> Path:
    """One call; `edit` adds fields to the checkpoint's JSON before it is written."""
    calls = OneCallRecording(like, weights={})
    checkpoint = calls.add(((x,), {})).checkpoint
    edit(calls._draft, calls._draft._checkpoints[checkpoint.id])
    assert calls.save(out)
    assert validate(out) == []
    return out


def judged(harness: Path, folder: Path, **outputs: torch.Tensor) -> dict[str, Any]:
    """The JSON of the only checkpoint."""
    file, lines = folder.parent / "y.safetensors", folder.parent / "verdict.json"
    save({name.replace("_", "."): output_of(t) for name, t in outputs.items()}, file)
    done = subprocess.run(
        [harness, "judge", folder, file, "--json", lines], capture_output=True, text=True
    )
    assert lines.is_file(), done.stderr
    import json

    [item] = [i for i in map(json.loads, lines.read_text().splitlines()) if "checkpoint" in i
              and i["type"] == "checkpoint"]  # fmt: skip
    return item


# A model without taps, by the commands that people use.

SIZES = {
    "num_hidden_layers": 1, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96,
}  # fmt: skip


@pytest.fixture(scope="module")
def olmo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OLMo2 in bf16: its norms are leaves that no block describes."""
    torch.manual_seed(3)
    config = AutoConfig.for_model("olmo2", **SIZES)
    options = {"attn_implementation": "eager", "dtype": torch.bfloat16}
    model = AutoModelForCausalLM.from_config(config, **options).eval()
    out = tmp_path_factory.mktemp("olmo") / "whole-bf16"
    ids = torch.randint(3, 96, (2, 9), generator=torch.Generator().manual_seed(1))
    with pytest.warns(RecordWarning, match="there are no taps"), record(model, out):
        model(ids, use_cache=False)
    return out


def olmo_norm(inputs: Any, weights: Any, params: Any, *, eps: float = 1e-5) -> torch.Tensor:
    [x] = inputs.values()
    wide = x.float()
    n = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    return (weights["weight"].float() * n).to(x.dtype)


@pytest.mark.nightly
def test_any_module_of_a_model_is_judged(olmo: Path, harness: Path) -> None:
    norms = r"norm#0$"
    verdicts = verify(olmo_norm, olmo, norms)
    assert len(verdicts) >= 3
    assert all(v.passed for v in verdicts), "\n".join(map(str, verdicts))
    assert {v.block for v in verdicts} == {"module"}

    def doubled(inputs: Any, weights: Any, params: Any) -> torch.Tensor:
        return olmo_norm(inputs, weights, params, eps=2e-2)

    assert {v.status for v in verify(doubled, olmo, norms)} == {"fail"}


def test_list_and_show_know_them(olmo: Path, harness: Path) -> None:
    listed = subprocess.run([harness, "list", "--fixture", olmo], capture_output=True, text=True)
    assert listed.returncode == 0 and "module" in listed.stdout
    shown = subprocess.run([harness, "show", olmo], capture_output=True, text=True)
    assert shown.returncode == 0 and "module" in shown.stdout


def test_a_native_device_has_no_block_for_them(olmo: Path, harness: Path) -> None:
    command = [harness, "--fixture", olmo, "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert 'no native block "module"' in done.stdout
    assert done.returncode == 0
    assert subprocess.run([*command, "--strict"], capture_output=True).returncode == 4


# Other rounding points.


def once(x: torch.Tensor) -> torch.Tensor:
    return (x.float().tanh() * 3 + x.float()).to(x.dtype)


def eager(x: torch.Tensor) -> torch.Tensor:
    return x.tanh() * 3 + x


def keeps_the_product(x: torch.Tensor) -> torch.Tensor:
    return (x.tanh().float() * 3 + x.float()).to(x.dtype)


def with_member(values: torch.Tensor) -> Edit:
    def edit(writer: Any, checkpoint: dict[str, Any]) -> None:
        member = {"name": "keeps mul #1 in float32", "values": writer.tensor(values)}
        checkpoint["outputs"]["out"]["members"] = [member | {"bits": [0, 0, 0]}]

    return edit


X = normal(6, 8, 32, dtype=torch.bfloat16)


def test_bits_may_follow_any_member(tmp_path: Path, harness: Path) -> None:
    folder = recorded(tmp_path / "r", eager, X, with_member(keeps_the_product(X)))
    for kernel, name in (
        (eager, "rounds as the recorded run does"),
        (once, "rounds once, at the output"),
        (keeps_the_product, "keeps mul #1 in float32"),
    ):
        item = judged(harness, folder, out=kernel(X))
        assert item["status"] == "pass", item["reason"]
        assert item["outputs"][0]["rounding"] == name
        assert item["diagnosis"].startswith(name)


def test_without_the_member_its_kernel_fails(tmp_path: Path, harness: Path) -> None:
    item = judged(harness, recorded(tmp_path / "r", eager, X), out=keeps_the_product(X))
    assert item["status"] == "fail"
    assert item["diagnosis"].startswith("follows no rounding points of the recording")


@pytest.mark.host
def test_a_member_less_accurate_than_the_reference_is_none(tmp_path: Path, harness: Path) -> None:
    bad = (eager(X).float() * (1 + 2**-7 * normal(*X.shape))).bfloat16()
    item = judged(harness, recorded(tmp_path / "r", eager, X, with_member(bad)), out=bad)
    assert item["status"] == "fail"
    assert "less accurate than the reference" in item["diagnosis"]


# Planted bugs.


def with_bugs(*bugs: dict[str, Any]) -> Edit:
    def edit(writer: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["bugs"] = [
            {k: writer.tensor(v) if isinstance(v, torch.Tensor) else v for k, v in bug.items()}
            for bug in bugs
        ]

    return edit


def bug(name: str, margin: float, y: torch.Tensor, right: torch.Tensor) -> dict[str, Any]:
    at = (y.float() - right.float()).abs().flatten().topk(16).indices.sort().values
    entry = {"name": name, "kind": "constant", "output": "out", "margin": margin}
    return entry | {"at": at, "values": y.flatten()[at].float()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_failure_is_the_planted_bug_that_it_equals(
    tmp_path: Path, harness: Path, dtype: torch.dtype
) -> None:
    x = normal(4, 6, 32, dtype=dtype)
    right = eager(x)
    planted = {
        "mul #1 3 -> 3.03": x.tanh() * 3.03 + x,
        "mul #1 3 -> 3.3": x.tanh() * 3.3 + x,
        "add #2 is skipped": x.tanh() * 3,
    }
    bugs = [bug(name, 5.0, y, right) for name, y in planted.items()]
    folder = recorded(tmp_path / "r", eager, x, with_bugs(*bugs))
    for name, y in planted.items():
        item = judged(harness, folder, out=y)
        assert item["status"] == "fail"
        assert item["known_bug"]["bug"] == name
        assert f"equals the block with a known bug, {name}" in item["reason"]
    other = judged(harness, folder, out=right * 1.5)
    assert other["status"] == "fail" and other["known_bug"] is None
    assert judged(harness, folder, out=right)["passing_bugs"] == []


def test_bugs_within_the_limits_would_pass(tmp_path: Path, harness: Path) -> None:
    y = eager(X)
    bugs = [bug(name, margin, 2 * y, y) for name, margin in (("a", 0.5), ("b", 1.5), ("c", 1e9))]
    item = judged(harness, recorded(tmp_path / "r", eager, X, with_bugs(*bugs)), out=eager(X))
    assert item["passing_bugs"] == ["a"]
    assert Verdict.of(item).passing_bugs == ("a",)


def test_a_position_outside_of_the_output_is_bad_input(tmp_path: Path, harness: Path) -> None:
    x = normal(2, 16)
    planted = {"at": torch.tensor([3, 99]), "values": torch.zeros(2)}
    entry = {"name": "far", "kind": "skip", "output": "out", "margin": 2.0} | planted
    with pytest.raises(AssertionError, match="at: 99 is number 1, expected 4 to 31"):
        recorded(tmp_path / "r", eager, x, with_bugs(entry))
    item = judged(harness, tmp_path / "r", out=eager(x) * 2)
    assert item["status"] == "bad_input"
    assert "position 99 is outside" in item["reason"]


# Choices.


def choices(x: torch.Tensor) -> torch.Tensor:
    return x.topk(3, -1).indices


def test_undecidable_choices_may_fall_either_way(tmp_path: Path, harness: Path) -> None:
    x = normal(6, 16)
    r = choices(x)
    free = torch.zeros_like(r, dtype=torch.bool)
    free[2, 1:] = True

    def edit(writer: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["outputs"]["out"]["undecidable"] = writer.tensor(free)

    folder = recorded(tmp_path / "r", choices, x, edit)
    swapped = r.clone()
    swapped[2, 1:] = r[2, 1:].flip(0)
    item = judged(harness, folder, out=swapped)
    assert item["status"] == "pass"
    assert item["details"][0] == (  # no warning comes before it
        'output "out": 2 of 18 choices are open, in 1 of 6 rows: values are within rounding of '
        "each other; 2 of them are not judged; [2, 1] of [6, 3]; [2, 2] of [6, 3]"
    )
    swapped[4, 0] += 1
    item = judged(harness, folder, out=swapped)
    assert item["status"] == "fail"
    assert "1 of 16 elements differ from the expected result, the first at [4, 0]" in item["reason"]


# What cannot be judged is no pass.


@pytest.mark.host
def test_moves_are_held_to_their_bits(tmp_path: Path, harness: Path) -> None:
    x = normal(4, 16)
    folder = recorded(tmp_path / "r", lambda x: x.flip(-1), x)
    assert judged(harness, folder, out=x.flip(-1))["status"] == "pass"
    off = x.flip(-1).clone()
    off[1, 2] = torch.nextafter(off[1, 2], torch.tensor(9.0))
    assert "1 of 64 elements" in judged(harness, folder, out=off)["reason"]


@pytest.mark.host
def test_without_oracle_nothing_is_judged(tmp_path: Path, harness: Path) -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2)

    x = normal(4, 16)
    item = judged(harness, recorded(tmp_path / "r", like, x), out=like(x))
    assert item["status"] == "unsupported"
    assert "like: what NumPy computes is taken as given" in item["reason"]


def test_without_simulated_kernels_nothing_is_judged(tmp_path: Path, harness: Path) -> None:
    x = normal(4, 16)
    calls = OneCallRecording(eager, weights={}, spread=0)
    calls.add(((x,), {}))
    assert calls.save(tmp_path / "r")
    item = judged(harness, tmp_path / "r", out=eager(x))
    assert item["status"] == "unsupported"
    assert "without simulated kernels (spread 0)" in item["reason"]


def test_outputs_that_are_not_given_are_named(tmp_path: Path, harness: Path) -> None:
    x = normal(4, 16)
    folder = recorded(tmp_path / "r", lambda x: (x.tanh(), x.exp()), x)
    item = judged(harness, folder, out_1=x.exp())
    assert item["status"] == "pass"
    assert item["not_judged"] == ["out.0"]
    assert judged(harness, folder, out_7=x)["status"] == "bad_input"


def test_verdicts_in_a_frame_and_in_a_notebook(olmo: Path, harness: Path) -> None:
    verdicts = verify(olmo_norm, olmo, r"norm#0$")
    html = verdicts[0]._repr_html_()
    assert "<b" in html and verdicts[0].checkpoint in html and "tensor" in html
    hostile = Verdict("<script>", "module", "fail", "<b>no</b>", {})
    assert "<script>" not in hostile._repr_html_() and "<b>no" not in hostile._repr_html_()
    pytest.importorskip("pandas")
    frame = python_inspector.verdicts_frame(verdicts)
    assert list(frame["status"]) == ["pass"] * len(verdicts)
    assert (frame["ratio"] <= 1).all()


def test_verify_asks_for_no_output_that_a_kernel_may_lack(tmp_path: Path, harness: Path) -> None:
    """Attention weights, as eager attention returns them and no flash kernel does."""

    def eager_attention(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = (q @ q.transpose(-1, -2) / 4).softmax(-1)
        return weights @ q, weights

    folder = recorded(tmp_path / "r", eager_attention, normal(1, 2, 8, 16))

    def flash(inputs: Any, *others: Any) -> torch.Tensor:
        q = inputs["q"]
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    for function in (
        flash,
        lambda *operands: (flash(*operands), None),
        lambda *operands: {"out.0": flash(*operands), "out.1": None},
    ):
        (verdict,) = verify(function, folder)
        assert verdict.passed, verdict
        assert verdict.not_judged == ("out.1",)
    (verdict,) = verify(lambda *operands: {"out.1": None}, folder)
    assert verdict.status == "error"
    assert "expected some of ['out.0', 'out.1']" in verdict.reason
    (verdict,) = verify(lambda *operands: (flash(*operands) * 1.01, None), folder)
    assert verdict.status == "fail"
