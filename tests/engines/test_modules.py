"""Modules of engines on recorded blocks, by verify_module(): each with its own weights' layout."""

from __future__ import annotations

from typing import Any

import pytest

import python_inspector
from python_inspector.engines.weights import config_of

LLAMA = ("llama-a1/whole-f32", "llama-a1/whole-f16")
QKV = {"q_proj.weight": "q_proj.weight", "k_proj.weight": "k_proj.weight",
       "v_proj.weight": "v_proj.weight", "output_proj.weight": "o_proj.weight"}  # fmt: skip


def assert_all(verdicts: list[python_inspector.Verdict], *, passed: bool = True) -> None:
    wrong = [str(verdict) for verdict in verdicts if verdict.passed != passed]
    assert verdicts and not wrong, "\n".join(wrong)


def dtype_of(recording: str) -> Any:
    torch = pytest.importorskip("torch")
    return torch.float16 if recording.endswith("f16") else torch.float32


@pytest.mark.parametrize("recording", LLAMA)
def test_litgpt_attention(recording: str) -> None:
    model = pytest.importorskip("litgpt.model")
    from python_inspector.engines.adapters import litgpt

    config = litgpt.settings(config_of(recording))
    module = model.CausalSelfAttention(config, 0).to(dtype_of(recording))
    names = {
        "qkv.weight": ["q_proj.weight", "k_proj.weight", "v_proj.weight"],
        "proj.weight": "o_proj.weight",
    }

    def call(module: Any, inputs: Any, _params: Any) -> Any:
        return module(inputs["hidden"], inputs["cos"], inputs["sin"])

    judge = {"block": "attention", "names": names, "call": call}
    assert_all(python_inspector.verify_module(module, recording, **judge))
    interleaved = python_inspector.verify_module(module, recording, **judge, rope="interleaved")
    assert_all(interleaved, passed=False)


@pytest.mark.parametrize("recording", LLAMA)
def test_torchtune_attention(recording: str) -> None:
    """It turns neighbours, by a table of its own."""
    pytest.importorskip("torchao")
    pytest.importorskip("torchtune")
    from python_inspector.engines.adapters import torchtune

    layer = torchtune.build(config_of(recording)).layers[0]
    module = layer.attn.to(dtype_of(recording))
    for part in module.modules():
        if hasattr(part, "rope_init"):
            part.rope_init()  # the table in float32

    def call(module: Any, inputs: Any, _params: Any) -> Any:
        return module(inputs["hidden"], inputs["hidden"])

    judge = {"block": "attention", "names": QKV, "call": call}
    assert_all(python_inspector.verify_module(module, recording, **judge, rope="interleaved"))
    assert_all(python_inspector.verify_module(module, recording, **judge), passed=False)


def test_litgpt_gemma_mlp() -> None:
    model = pytest.importorskip("litgpt.model")
    from python_inspector.engines.adapters import litgpt

    recording = "gemma2-a4/whole-f32"
    module = model.GemmaMLP(litgpt.settings(config_of(recording)))
    names = {"fc_1.weight": "gate_proj.weight", "fc_2.weight": "up_proj.weight",
             "proj.weight": "down_proj.weight"}  # fmt: skip
    assert_all(python_inspector.verify_module(module, recording, "glu_mlp", names=names))
    names["fc_1.weight"], names["fc_2.weight"] = names["fc_2.weight"], names["fc_1.weight"]
    wrong = python_inspector.verify_module(module, recording, "glu_mlp", names=names)
    assert_all(wrong, passed=False)
