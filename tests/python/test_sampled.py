"""Sampled outputs: which rows are chosen, what a sketch is, and that the border cases hold it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from python_inspector.cases import border_steps as do
from python_inspector.cases import committed
from python_inspector.cases.border import Subject
from python_inspector.cases.border_cases import BORDER_CASES, LENGTHS, LIMIT, BorderCase, full_layer
from python_inspector.cli.inspector import main
from python_inspector.errors import RecordError
from python_inspector.format.generator import UNIT
from python_inspector.format.sampled import Sampling, choose_tokens, is_sampled, sketch, take
from python_inspector.format.validate import validate
from python_inspector.recorder.where import Where

FIXTURES = Path(__file__).parents[2] / "fixtures"
HIDDEN = ("batch", "token", "channel")
HEADS = ("batch", "head", "token", "head_dim")


def test_edges_borders_and_the_largest_value_are_chosen() -> None:
    o = torch.zeros(2, 200, 4)
    o[1, 77, 2] = -5.0
    chosen = choose_tokens(o, HIDDEN, Sampling(random=0), None)
    assert chosen == [0, 63, 64, 77, 127, 128, 191, 192, 199]
    with_window = choose_tokens(o, HIDDEN, Sampling(random=0), 100)
    assert set(with_window) - set(chosen) == {99, 100}
    assert len(choose_tokens(o, HIDDEN, Sampling(random=3), None)) > len(chosen)
    assert choose_tokens(o[:, :1], HIDDEN, Sampling(), None) == [0]


def test_small_outputs_are_stored_whole() -> None:
    large = torch.zeros(1, 65, 2048)
    assert is_sampled(large, HIDDEN, Sampling())
    assert not is_sampled(large, HIDDEN, None)
    assert not is_sampled(large[:, :1], HIDDEN, Sampling())
    assert not is_sampled(large[:, :2, :9], HIDDEN, Sampling())
    assert not is_sampled(large.bool(), HIDDEN, Sampling())
    assert not is_sampled(large, ("batch", "head", "head_dim"), Sampling())


def test_a_sketch_is_of_rows_whatever_the_order_of_axes() -> None:
    generator = torch.Generator().manual_seed(1)
    o = torch.randn(2, 3, 5, 8, generator=generator, dtype=torch.float64)
    made = sketch(o.float(), o, HEADS, "test")
    moved = o.permute(0, 2, 1, 3)
    again = sketch(moved.float(), moved, ("batch", "token", "head", "head_dim"), "test")
    assert torch.equal(made.oracle, again.oracle)
    assert made.oracle.shape == (10, 16)
    assert torch.allclose(made.rms, moved.reshape(10, -1).square().mean(1).sqrt())
    exact = moved.reshape(10, -1).square().sum(1)
    assert torch.allclose(made.oracle.square().mean(1), exact, rtol=1.0)
    assert torch.equal(take(o, HEADS, [1, 4]), o[:, :, [1, 4]])


def test_what_is_not_finite_cannot_be_sampled() -> None:
    o = torch.zeros(1, 3, 4, dtype=torch.float64)
    r = o.float()
    r[0, 1, 1] = float("inf")
    with pytest.raises(RecordError, match="not finite"):
        sketch(r, o, HIDDEN, "test")


def small_case() -> BorderCase:
    sizes = {"hidden_size": 1056, "head_dim": 20}
    subject = Subject("llama3-8b", "bf16", ("norm", "rotary_emb"), sizes=sizes)
    steps = [do.part("norm", 65), do.rotary(3), do.sdpa(65), do.sdpa(2, 65)]
    return BorderCase("x/whole-bf16", "small", subject, steps, 65)


def record(out: Path) -> dict[str, Any]:
    small_case().record(Where(out, "x/whole-bf16", command="test", created="2026-01-01T00:00:00Z"))
    result: dict[str, Any] = json.loads((out / "recording.json").read_text())
    return result


def test_a_border_recording_is_valid_and_the_same_again(tmp_path: Path) -> None:
    first = record(tmp_path / "a")
    assert validate(tmp_path / "a") == []
    assert first == record(tmp_path / "b")
    by_block = {c["block"]: c for c in first["checkpoints"]}
    assert set(by_block) == {"rms_norm", "rotary_frequencies", "rotary_table", "rotary", "sdpa"}
    norm = by_block["rms_norm"]
    assert first["tensors"][norm["inputs"]["x"]["tensor"]]["generator"]["exponent"] == -15
    assert first["tensors"][norm["weights"]["weight"]]["generator"]["offset"] == 1
    assert norm["outputs"]["out"]["rows"]["of"] == 65
    assert by_block["sdpa"]["params"]["query_offset"] == 63, "the last: two queries of 65 tokens"


def test_the_committed_ones_reach_every_length_and_stay_small() -> None:
    pairs, widths = set(), set()
    for case in BORDER_CASES:
        folder = FIXTURES / case.name
        assert sum(p.stat().st_size for p in folder.iterdir()) <= LIMIT, case.name
        recording = json.loads((folder / "recording.json").read_text())
        for checkpoint in recording["checkpoints"]:
            if checkpoint["block"] != "sdpa":
                continue
            q, k = (
                recording["tensors"][checkpoint["inputs"][name]["tensor"]]["shape"] for name in "qk"
            )
            pairs.add((q[2], k[2]))
            widths.add((recording["provenance"]["dtype"], q[3]))
    assert {(n, n) for n in LENGTHS} | {(1, n) for n in LENGTHS} <= pairs
    assert (65, 129) in pairs
    assert {64, 80, 96, 128, 256} <= {width for _, width in widths}
    assert {("bf16", 128), ("bf16", 256), ("f32", 64), ("f16", 64)} <= widths


def test_the_layer_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["layer", "--out", str(tmp_path / "x"), "--tokens", "9"]
    assert main([*words, "--shape", "llama9"]) == 3
    assert "known are llama3-8b" in capsys.readouterr().err
    assert main([*words, "--shape", "gemma2-2b", "--tokens", "1"]) == 2
    assert main([*words, "--shape", "gemma2-2b", "--device", "cuda"]) == 2
    assert not (tmp_path / "x").exists()


def test_zamba2s_layers_of_any_size(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "adapter_rank": 4,
        "num_key_value_heads": 4, "n_mamba_heads": 4, "mamba_d_state": 8, "chunk_size": 8,
    }  # fmt: skip
    case = full_layer("zamba2-1.2b", "bf16", 9, "cpu")
    case = replace(case, subject=replace(case.subject, sizes=sizes))
    case.record(Where(tmp_path / "r", "test"))
    assert validate(tmp_path / "r") == []
    recording = json.loads((tmp_path / "r" / "recording.json").read_text())
    kinds = {checkpoint["block"] for checkpoint in recording["checkpoints"]}
    assert kinds == {
        "rms_norm", "linear", "mamba2_mixer", "mamba_layer", "rotary_frequencies", "rotary_table",
        "rotary", "sdpa", "glu_mlp", "shared_transformer", "hybrid_layer",
    }  # fmt: skip
    weights = [t for key, t in recording["tensors"].items() if key.startswith("w")]
    assert all("generator" in entry for entry in weights)
    rules = {entry["name"]: entry["generator"] for entry in weights}
    assert rules["mamba.mamba.D"]["offset"] == rules["hybrid.mamba_decoder.mamba.D"]["offset"] == 1
    assert rules["mamba.mamba.conv1d.weight"]["exponent"] == UNIT - 1, "a kernel of 4"


def test_selecting_border_cases() -> None:
    assert len(committed.select("^border-")) == len(BORDER_CASES)
