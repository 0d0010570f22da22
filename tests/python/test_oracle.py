"""The recorded oracle against an independent float64 implementation of every block."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import reference
import torch
import zamba2_reference
from recorded import DTYPES, Recording, recorded

from python_inspector.format.validate import validate

FIXTURES = Path(__file__).parents[2] / "fixtures"
RUNS = [
    ("llama-a1", "whole", "f32", "eager"),
    ("llama-a1", "decode", "bf16", "eager"),
    ("llama-a1", "padded-decode", "f16", "eager"),
    ("llama-a1", "chunked", "bf16", "sdpa"),
    ("llama-a1", "padded", "f32", "sdpa"),
    ("llama-a2-mqa", "decode", "f32", "eager"),
    ("llama-a2-mha", "padded-decode", "bf16", "sdpa"),
    ("llama-a3-linear", "whole", "f32", "eager"),
    ("llama-a3-llama3", "whole", "bf16", "eager"),
    ("llama-a3-yarn", "whole", "f32", "eager"),
    ("llama-a3-yarn-exact", "whole", "f32", "eager"),
    ("llama-a3-yarn-long", "whole", "f32", "eager"),
    ("llama-a3-yarn-mscale", "whole", "f16", "eager"),
    ("llama-a3-longrope", "decode", "f32", "eager"),
    ("llama-a3-dynamic", "decode", "f32", "eager"),
    ("gemma2-a4", "whole", "f16", "eager"),
    ("gemma2-a4", "decode", "f32", "eager"),
    ("gemma2-a4", "chunked", "bf16", "eager"),
    ("gemma2-a4", "padded-decode", "bf16", "eager"),
    ("gemma2-a5-no-caps", "padded-decode", "bf16", "sdpa"),
    ("gemma2-a5-c48", "whole", "bf16", "eager"),
    ("llama-outliers", "whole", "bf16", "eager"),
    ("llama-x2", "padded-decode", "f16", "eager"),
    ("mistral-b1", "decode", "bf16", "eager"),
    ("mistral-b1", "chunked", "f32", "sdpa"),
    ("mistral-b1-full", "padded", "f32", "eager"),
    ("qwen2-b2", "decode", "f32", "eager"),
    ("qwen2-b2", "padded-decode", "bf16", "sdpa"),
    ("qwen2-b2-full", "whole", "f32", "eager"),
    ("qwen3-b3", "decode", "f32", "eager"),
    ("phi3-b4", "decode", "f32", "eager"),
    ("phi3-b4-longrope", "chunked", "bf16", "sdpa"),
    ("cohere-b5", "decode", "f32", "eager"),
    ("cohere-b5", "padded-decode", "bf16", "eager"),
    ("zamba2-a6", "whole", "f32", "eager"),
    ("zamba2-a6", "decode", "bf16", "eager"),
    ("zamba2-a6", "chunked", "f16", "sdpa"),
    ("zamba2-a7", "decode", "f32", "eager"),
    ("zamba2-a8", "padded-decode", "f32", "eager"),
    ("blocks", "whole", "bf16", "eager"),
    ("blocks", "whole", "f32", "sdpa"),
]


@pytest.fixture(params=RUNS, ids="-".join, scope="module")
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Recording, str]:
    folder = tmp_path_factory.mktemp("run") / "recording"
    recording = recorded(folder, *request.param, spread=0)  # the oracle alone
    assert validate(folder) == []
    return recording, request.param[2]


@pytest.mark.sampled
def test_oracle_is_the_block_in_float64(run: tuple[Recording, str]) -> None:
    recording, dtype = run
    seen = check_oracle(recording, dtype)
    layers = ("decoder_layer", "hybrid_layer", "layer_norm")
    assert any(seen[block] for block in layers), "the run recorded next to nothing"


ZAMBA2 = sorted(
    path.parent
    for path in FIXTURES.glob("zamba2-*/*/recording.json")
    if not path.parent.name.endswith("-components")  # test_components.py has those
)


@pytest.mark.parametrize("folder", ZAMBA2, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_oracle_of_the_committed_zamba2_recordings(folder: Path) -> None:
    recording = Recording(folder)
    assert sum(check_oracle(recording, recording.json["provenance"]["dtype"]).values()) > 15


STATIC = sorted(path.parent for path in FIXTURES.glob("*/*-static/recording.json"))


@pytest.mark.parametrize("folder", STATIC, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_oracle_of_the_committed_recordings_on_static_caches(folder: Path) -> None:
    recording = Recording(folder)
    seen = check_oracle(recording, recording.json["provenance"]["dtype"])
    assert seen["static_kv_cache"] and seen["decoder_layer"]


def check_oracle(recording: Recording, dtype: str) -> Counter[str]:
    """|o - ours| <= 1e-12 max|o| + 2^-24 |delta|: delta is stored in f32. How many of each kind."""
    blocks = reference.BLOCKS
    if recording.json["provenance"]["model_type"] == "zamba2":
        blocks = blocks | zamba2_reference.BLOCKS
    seen: Counter[str] = Counter()
    for checkpoint in recording.checkpoints:
        block = checkpoint["block"]
        if block == "position_ids":  # test_components.py has it
            continue
        tensors = recording.inputs(checkpoint), recording.weights(checkpoint)
        if block == "causal_mask":
            lowest = torch.finfo(DTYPES[dtype]).min
            ours = reference.causal_mask(*tensors, checkpoint["params"], lowest)
        else:
            ours = blocks[block](*tensors, checkpoint["params"])
        for name, output in checkpoint["outputs"].items():
            o, valid = recording.oracle(checkpoint, name), recording.valid(checkpoint, name)
            assert o.shape == ours[name].shape, (checkpoint["id"], name)
            if not o.is_floating_point():
                assert torch.equal(o, ours[name]), checkpoint["id"]
                continue
            delta = torch.zeros_like(o)
            if output["delta"] is not None:
                delta = recording.tensor(output["delta"])
            limit = 1e-12 * o[valid].abs().max() + 2.0**-24 * delta.abs()
            worst = ((o - ours[name]).abs() - limit)[valid].max()
            assert worst <= 0, f"{checkpoint['id']} {name}: {worst:.3e} over the limit"
        seen[block] += 1
    return seen


def test_error_is_that_of_the_stored_delta(run: tuple[Recording, str]) -> None:
    recording, _ = run
    for checkpoint in recording.checkpoints:
        for name, output in checkpoint["outputs"].items():
            if output["delta"] is None:
                assert output["error"] == 0
                continue
            valid = recording.valid(checkpoint, name)
            delta = recording.tensor(output["delta"])[valid]
            o = recording.oracle(checkpoint, name)[valid]
            error = (delta.square().sum() / o.square().sum()).sqrt()
            assert output["error"] == pytest.approx(float(error), rel=1e-6), checkpoint["id"]
