"""Runs that must not be recorded as they are, and what the text says then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Recording, ids, run

from python_inspector import RecordError, RecordWarning, record, tiny
from python_inspector.format.validate import validate
from python_inspector.taps.options import What


def refused(model: torch.nn.Module, out: Path, text: str) -> None:
    with pytest.raises(RecordError, match=text), record(model, out):
        run(model, "whole")
    assert not out.exists()


def forced(model: torch.nn.Module, out: Path, text: str) -> Recording:
    with pytest.warns(RecordWarning, match=text), record(model, out, What(force=True)):
        run(model, "whole")
    assert validate(out) == []
    recording = Recording(out)
    assert any(text in w for w in recording.json["provenance"]["warnings"])
    return recording


def test_softcap_that_sdpa_drops(tmp_path: Path) -> None:
    model = tiny.build("gemma2-a4", attention="sdpa")
    refused(model, tmp_path / "r", "sdpa silently ignores attn_logit_softcapping=3.0")
    recording = forced(model, tmp_path / "r", "silently ignores")
    assert {c["params"]["softcap"] for c in recording.of("sdpa")} == {None}
    free = tiny.build("gemma2-a5-no-caps", attention="sdpa")
    with record(free, tmp_path / "free"):
        run(free, "whole")


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inv_freq_rounded_by_a_cast_of_the_model(
    tmp_path: Path, dtype: torch.dtype, back: bool
) -> None:
    model = tiny.build("llama-a1").to(dtype)
    if back:
        model = model.float()
    refused(model, tmp_path / "r", r"inv_freq is torch\.\w+ and off by")
    if not back:
        forced(model, tmp_path / "r", "inv_freq")


def test_embedding_scale_rounded_by_a_cast_of_the_model(tmp_path: Path) -> None:
    model: Any = tiny.build("gemma2-a5-c48")
    embedding = model.model.embed_tokens
    embedding.embed_scale = embedding.embed_scale.to(torch.bfloat16).float()
    refused(model, tmp_path / "r", r"embed_scale is 6\.9375, the config gives 6\.928")


def test_models_loaded_in_their_dtype_pass(tmp_path: Path) -> None:
    for name in ("llama-a1", "gemma2-a5-c48", "llama-a3-yarn", "llama-a3-longrope"):
        model = tiny.build(name, torch.bfloat16)
        with record(model, tmp_path / name):
            run(model, "whole")
    model = tiny.build("gemma2-a4", torch.float64)
    with record(model, tmp_path / "f64"):
        run(model, "decode")
    assert Recording(tmp_path / "f64").json["contracts"]["eager"]["accumulator"]["bits"] == 53
    assert validate(tmp_path / "f64") == []


def test_train_mode(tmp_path: Path) -> None:
    model = tiny.build("llama-a1").train()
    refused(model, tmp_path / "r", "train mode.*model.eval")
    model.eval()
    model.model.layers[1].mlp.train()  # type: ignore[union-attr, index]
    refused(model, tmp_path / "r", r"model\.layers\.1\.mlp is in train mode")


def test_attention_that_cannot_be_lifted(tmp_path: Path) -> None:
    model: Any = tiny.build("llama-a1")
    model.config._attn_implementation = "flash_attention_2"
    refused(model, tmp_path / "r", "attn_implementation 'flash_attention_2'")


def test_hub_kernels_and_replaced_forwards(tmp_path: Path) -> None:
    model: Any = tiny.build("llama-a1")
    model._use_kernels = True
    refused(model, tmp_path / "r", "hub kernels")
    model._use_kernels = False
    norm = model.model.norm
    norm.forward = type(norm).forward.__get__(norm)
    refused(model, tmp_path / "r", r"model\.norm has a replaced forward")


def test_autocast_and_compiled(tmp_path: Path) -> None:
    model = tiny.build("llama-a1")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        refused(model, tmp_path / "r", "autocast is on")
    refused(torch.compile(model), tmp_path / "r", "compiled model")  # type: ignore[arg-type]


def test_mixed_dtypes(tmp_path: Path) -> None:
    model: Any = tiny.build("llama-a1")
    model.model.norm.weight.data = model.model.norm.weight.data.double()
    refused(model, tmp_path / "r", "parameters differ in dtype.*model.norm.weight is torch.float64")


def test_packed_sequences(tmp_path: Path) -> None:
    model = tiny.build("llama-a1")
    x = ids(model, tokens=6)
    jumping = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with (
        pytest.raises(RecordError, match="packed sequences"),
        record(model, tmp_path / "r"),
        torch.no_grad(),
    ):
        model(x, position_ids=jumping, use_cache=False)
    with record(model, tmp_path / "r"), torch.no_grad():
        model(x, position_ids=jumping, attention_mask=torch.ones_like(x), use_cache=False)
        model(x, position_ids=jumping, use_cache=True)
    with (
        pytest.warns(RecordWarning, match="recorded as it is"),
        record(model, tmp_path / "f", What(force=True)),
        torch.no_grad(),
    ):
        model(x, position_ids=jumping, use_cache=False)
    assert "mask" in Recording(tmp_path / "f").of("sdpa")[0]["inputs"]


@pytest.mark.parametrize(("name", "word"), [("llama-a1", "ones"), ("gemma2-a4", "zeros")])
def test_identity_norms_are_warned_about(tmp_path: Path, name: str, word: str) -> None:
    model = tiny.build(name)
    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]
    for module in norms:
        torch.nn.init.constant_(module.weight, float(word == "ones"))  # type: ignore[arg-type]
    text = f"norm weights are all {word}, this recording cannot see"
    with pytest.warns(RecordWarning, match=text), record(model, tmp_path / "r"):
        run(model, "whole")
    assert any(text in w for w in Recording(tmp_path / "r").json["provenance"]["warnings"])


def test_zero_biases_are_warned_about(tmp_path: Path) -> None:
    model = tiny.build("llama-a2-mha")
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    with pytest.warns(RecordWarning, match="biases are all zero"), record(model, tmp_path / "r"):
        run(model, "whole")


def test_tf32_is_off_inside_and_back_after(tmp_path: Path) -> None:
    model = tiny.build("llama-a1")
    before = torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("medium")
    try:
        with record(model, tmp_path / "r"):
            run(model, "whole")
            assert not torch.backends.cudnn.allow_tf32
            assert not torch.backends.cuda.matmul.allow_tf32
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.backends.cudnn.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    noted = Recording(tmp_path / "r").json["provenance"]["notes"]["switched_off"]
    assert {"cudnn.allow_tf32", "cuda.matmul.allow_tf32"} <= set(noted)


def test_integer_weights(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2).eval().to(torch.float8_e4m3fn)
    with pytest.raises(RecordError, match="quantised"), record(model, tmp_path / "r"):
        pass


@pytest.mark.nightly
def test_recording_needs_no_switch_that_torchs_own_test_modules_froze(tmp_path: Path) -> None:
    code = (
        "import torch, torch.testing._internal.common_utils; from python_inspector import record\n"
        "from python_inspector.models import tiny; before = torch.backends.cudnn.allow_tf32\n"
        "model = tiny.build('llama-a1', torch.float32)\n"
        f"with record(model, {str(tmp_path / 'r')!r}), torch.no_grad():\n"
        "    model(torch.arange(3)[None])\n"
        "assert torch.backends.cudnn.allow_tf32 == before"
    )
    pytest.importorskip("expecttest")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
