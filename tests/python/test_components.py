"""Single operations and caches of fixed length as blocks: what is recorded is what torch did."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Recording

import python_inspector
from python_inspector import tiny
from python_inspector.models.inputs import RunPlan, random_ids, run_model
from python_inspector.taps.options import COMPONENTS, What

KINDS = sorted(COMPONENTS)


def recording_of(tmp_path: Path, name: str, plan: RunPlan, **what: Any) -> Recording:
    model = tiny.build(name)
    with python_inspector.record(model, tmp_path / "run", What(**what)):
        run_model(model, plan)
    return Recording(tmp_path / "run")


def plan(tokens: int = 5, **more: Any) -> RunPlan:
    return RunPlan(random_ids(2, tokens, 40), tokens, **more)


def again(block: str, p: dict[str, Any], x: dict[str, torch.Tensor]) -> torch.Tensor:
    """The operation by its formula in the format's table."""
    if block == "concat":
        return torch.cat([x["a"], x["b"]], p["axis"])
    if block == "slice":
        return x["x"].narrow(p["axis"], p["begin"], p["end"] - p["begin"])
    if block == "permute":
        return x["x"].permute([int(axis) for axis in p["axes"]])
    if block == "mul":
        return x["a"] * x["b"]
    if block == "add_scalar":
        return x["x"] + p["value"]
    if block == "mask_fill":
        return x["x"].masked_fill(x["mask"], float(p["value"]))
    if block == "conv1d":
        channels = x["x"].shape[1]
        conv1d = torch.nn.functional.conv1d
        return conv1d(x["x"], x["weight"], x.get("bias"), padding=p["padding"], groups=channels)
    if block == "position_ids":
        return p["offset"] + torch.arange(5)[None]
    raise AssertionError(block)


@pytest.mark.parametrize("name", ["llama-a1", "zamba2-a6"])
def test_operations_are_what_their_rows_say(tmp_path: Path, name: str) -> None:
    kinds = [kind for kind in KINDS if not kind.endswith("_cache")]
    recorded = recording_of(tmp_path, name, plan(), blocks=kinds, layers=(0,))
    seen: Counter[str] = Counter()
    for checkpoint in recorded.checkpoints:
        inputs = recorded.inputs(checkpoint)
        out = recorded.oracle(checkpoint)
        torch.testing.assert_close(again(checkpoint["block"], checkpoint["params"], inputs), out)
        seen[checkpoint["block"]] += 1
    assert {"mul", "slice", "permute", "add_scalar"} <= seen.keys()
    if name == "zamba2-a6":
        assert {"mask_fill", "conv1d", "concat"} <= seen.keys()


def test_operations_are_recorded_only_by_name(tmp_path: Path) -> None:
    recorded = recording_of(tmp_path, "llama-a1", plan())
    assert not COMPONENTS & {checkpoint["block"] for checkpoint in recorded.checkpoints}


@pytest.mark.parametrize("chunks", [(3, 1, 1, 1, 1), (7, 1, 3), (2, 4, 6)])
def test_static_buffers_hold_the_last_tokens(tmp_path: Path, chunks: tuple[int, ...]) -> None:
    """A sliding layer's buffer and a full one's, against all tokens in a row."""
    n = sum(chunks)
    run = plan(n, chunks=chunks, cache="static", max_length=16)
    recorded = recording_of(tmp_path, "gemma2-a4", run, blocks=["static_kv_cache"], layers=(0, 1))
    tokens: dict[str, torch.Tensor] = {}
    for checkpoint in recorded.checkpoints:
        path, slots = checkpoint["path"], checkpoint["params"]["max_length"]
        k = recorded.tensor(checkpoint["inputs"]["k"]["tensor"])
        after = recorded.tensor(checkpoint["outputs"]["keys_after"]["tensor"])
        seen = tokens.get(path, k[:, :, :0])
        assert checkpoint["params"]["seen"] == seen.shape[2]
        assert checkpoint["params"]["window"] == (5 if "layers.0" in path else None)
        assert slots == after.shape[2] == (5 if "layers.0" in path else 16)
        tokens[path] = torch.cat([seen, k], 2)
        held = tokens[path][:, :, -slots:]
        assert torch.equal(after[:, :, : held.shape[2]], held)
        assert not after[:, :, held.shape[2] :].any()
    assert len(tokens) == 2
