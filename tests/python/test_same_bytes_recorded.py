"""Recordings by the command line in which an output projection takes what attention gives, at a
size from which on that is stored once."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import ROOT, command
from transformers import LlamaConfig, LlamaForCausalLM

from python_inspector import verify
from python_inspector.format import spool
from python_inspector.format.recording import ITEM_SIZES
from python_inspector.format.validate import validate

RECORD = "record --tokens 512 --chunks 256,256 --blocks sdpa,linear --effort fast --name a/b"
WIDTH = 2048
"""256 tokens of it are a megabyte in bf16."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=59, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    built: Any = LlamaForCausalLM(config)
    built.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def recording(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recordings") / "whole"
    words = [*RECORD.split(), "--model", str(model), "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "python_inspector", *words], cwd=ROOT, capture_output=True,
        text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.nightly
def test_what_attention_gives_is_stored_once_and_taken_by_its_projection(recording: Path) -> None:
    document = json.loads((recording / "recording.json").read_text())
    table = document["tensors"]
    by_id = {c["id"]: c for c in document["checkpoints"]}
    attention = "model.layers.0.self_attn"
    for call in (0, 1):
        given = by_id[f"{attention}:sdpa#{call}"]["outputs"]["out"]["tensor"]
        taken = by_id[f"{attention}.o_proj#{call}"]["inputs"]["x"]["tensor"]
        assert table[taken]["payload_of"] == given
        assert table[given]["shape"] == [1, 256, 2, WIDTH // 2]
        assert table[taken]["shape"] == [1, 256, WIDTH]
    shared = [entry for entry in table.values() if "payload_of" in entry]
    assert len(shared) == 2
    every = sum(
        math.prod(entry["shape"]) * ITEM_SIZES[entry["dtype"]]
        for entry in table.values()
        if entry.get("file") == "tensors"
    )
    assert document["files"]["tensors"]["bytes"] < every - 2 * spool.BESIDE + (64 << 10)


def test_all_readers_take_it(recording: Path) -> None:
    assert validate(recording) == []
    done = command("--fixture", str(recording), "--device", "cpu")
    assert done.returncode == 0 and "18 pass" in done.stdout, done.stdout + done.stderr

    def projection(inputs: Any, weights: Any, params: Any) -> Any:
        return torch.nn.functional.linear(inputs["x"], weights["weight"])

    verdicts = verify(projection, recording, checkpoint="o_proj")
    assert [verdict.status for verdict in verdicts] == ["pass", "pass"]
