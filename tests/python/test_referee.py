"""When our own float64 block runs in addition to what a recording says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import verify
from transformers import LlamaConfig, LlamaForCausalLM

from python_inspector import record
from python_inspector.taps.options import Proof, What
from tests.panel.moved import MOVES, Editor, Move, moved

WITHOUT = "judged by what the recording says alone; --referee native runs our float64 block, too"


def llama(dtype: torch.dtype, **sizes: int) -> LlamaForCausalLM:
    config = LlamaConfig(vocab_size=32, num_hidden_layers=2, **sizes)
    torch.manual_seed(3)
    model = LlamaForCausalLM._from_config(config, dtype=dtype).eval()
    for norm in (m for m in model.modules() if type(m).__name__ == "LlamaRMSNorm"):
        torch.nn.init.normal_(norm.weight, 1, 0.1)
    return model


def record_block(model: LlamaForCausalLM, block: str, folder: Path) -> Path:
    with record(model, folder, What(blocks=[block]), Proof(spread=4)), torch.no_grad():
        model(torch.tensor([[1, 2, 3]]), use_cache=False)
    return folder


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two MLPs whose weights take a while to be widened."""
    sizes = {"hidden_size": 512, "intermediate_size": 7168, "num_attention_heads": 4}
    model = llama(torch.bfloat16, **sizes)
    return record_block(model, "glu_mlp", tmp_path_factory.mktemp("large") / "run")


def refereed(folder: Path, tmp_path: Path, *options: str) -> tuple[int, list[bool]]:
    done = verify(tmp_path, "--fixture", str(folder), "--device", "cpu", *options)
    assert len(done.results) == 2, done.stderr
    return done.code, [WITHOUT not in result["details"] for result in done.results]


def with_activation(recording: Path, folder: Path, layers: set[int]) -> Path:
    """The recording, where these layers say that they are of another activation."""
    content: dict[str, Any] = json.loads((recording / "recording.json").read_text())
    for layer in layers:
        params = content["checkpoints"][layer]["params"]
        assert params["function"] == "silu"
        params["function"] = "gelu_pytorch_tanh"
    folder.mkdir()
    (folder / "recording.json").write_text(json.dumps(content))
    for file in recording.iterdir():
        if file.name != "recording.json":
            (folder / file.name).hardlink_to(file)
    return folder


def test_it_runs_once_for_each_kind_of_checkpoint_that_takes_long(
    recording: Path, tmp_path: Path
) -> None:
    assert refereed(recording, tmp_path) == (0, [True, False])
    assert refereed(recording, tmp_path, "--referee", "native") == (0, [True, True])
    assert refereed(recording, tmp_path, "--referee", "none") == (0, [False, False])
    assert refereed(recording, tmp_path, "--referee", "none", "--dtype", "f32")[1] == [True, True]


def test_it_runs_before_a_checkpoint_fails(recording: Path, tmp_path: Path) -> None:
    folder = with_activation(recording, tmp_path / "edited", {0, 1})
    assert refereed(folder, tmp_path) == (1, [True, True])


def test_each_params_have_a_checkpoint_of_their_own(recording: Path, tmp_path: Path) -> None:
    folder = with_activation(recording, tmp_path / "edited", {1})
    code, ran = refereed(folder, tmp_path)
    assert (code, ran) == (1, [True, True])


@pytest.mark.parametrize(
    ("dtype", "both"), [(torch.bfloat16, False), (torch.float32, True)], ids=["bf16", "f32"]
)
def test_layers_are_of_a_kind_where_their_largest_scores_widen_no_limit(
    tmp_path: Path, dtype: torch.dtype, both: bool
) -> None:
    sizes = {"hidden_size": 2048, "intermediate_size": 64, "num_attention_heads": 16}
    folder = record_block(llama(dtype, **sizes), "attention", tmp_path / "run")
    found = json.loads((folder / "recording.json").read_text())["checkpoints"]
    assert len({checkpoint["params"]["max_abs_score"] for checkpoint in found}) == 2
    assert refereed(folder, tmp_path)[1] == [True, both]


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    model = llama(torch.bfloat16, **sizes)
    return record_block(model, "sdpa", tmp_path_factory.mktemp("attention") / "run")


def edited(folder: Path, to: Path, move: Move) -> Path:
    shutil.copytree(folder, to)
    editor = Editor(to)
    assert len(moved(editor, move)) == 2
    editor.save()
    return to


ORACLE = {
    "f64": ("--device", "oracle"),
    "bf16": ("--device", "oracle", "--no-fuse", "--dtype", "bf16"),
}


@pytest.mark.parametrize(
    ("figure", "dtype", "status", "reason"),
    [
        ("delta: all by 1 %", "f64", "fail", "float64 error"),
        ("max_abs_score x 10", "f64", "bad_input", "max_abs_score is"),
        ("max_abs_score / 10", "f64", "bad_input", "max_abs_score is"),
    ],
)
def test_the_oracle_device_alone_finds_a_figure_that_was_moved(
    attention: Path, tmp_path: Path, figure: str, dtype: str, status: str, reason: str
) -> None:
    folder = edited(attention, tmp_path / "edited", MOVES[figure])
    for where, expected in ((attention, "pass"), (folder, status)):
        done = verify(tmp_path, "--fixture", str(where), *ORACLE[dtype], "--referee", "none")
        assert [result["status"] for result in done.results] == [expected] * 2
        assert all((reason in result["reason"]) == (expected != "pass") for result in done.results)
