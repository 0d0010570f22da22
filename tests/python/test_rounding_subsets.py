"""Right 16-bit kernels that round at some of eager code's points pass, one token at a time too."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

import python_inspector

F = torch.nn.functional


def epilogue_mlp(inputs: Any, weights: Any, params: Any) -> torch.Tensor:
    """Activation and product in the epilogue of one gemm: only their product is stored."""
    x = inputs["hidden"].float()
    gate = x @ weights["gate_proj.weight"].float().T
    up = x @ weights["up_proj.weight"].float().T
    product = (F.silu(gate) * up).to(inputs["hidden"].dtype)
    return product.float() @ weights["down_proj.weight"].float().T


def stored_scores(inputs: Any, weights: Any, params: Any) -> torch.Tensor:
    """q k^T stored, then scale, mask and softmax in float32, stored, then the values."""
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q.float() @ k.float().transpose(-1, -2)).to(q.dtype).float() * params["scale"]
    query = params["query_offset"] + torch.arange(scores.shape[-2])[:, None]
    key = params["key_offset"] + torch.arange(scores.shape[-1])
    weight = torch.softmax(scores.masked_fill(key > query, -math.inf), -1).to(q.dtype)
    return (weight.float() @ v.float()).transpose(1, 2)


def statuses(kernel: Any, block: str, harness: Path) -> list[str]:
    verdicts = python_inspector.verify(
        kernel, "llama-a1/decode-bf16", block=block, margins=False, harness=harness
    )
    assert len(verdicts) == 15
    return [verdict.status for verdict in verdicts]


def test_a_fused_epilogue_passes_and_exchanged_projections_fail(harness: Path) -> None:
    def exchanged(inputs: Any, weights: Any, params: Any) -> torch.Tensor:
        swapped = {
            **weights,
            "gate_proj.weight": weights["up_proj.weight"],
            "up_proj.weight": weights["gate_proj.weight"],
        }
        return epilogue_mlp(inputs, swapped, params)

    assert set(statuses(epilogue_mlp, "glu_mlp", harness)) == {"pass"}
    assert set(statuses(exchanged, "glu_mlp", harness)) == {"fail"}


def test_stored_scores_pass_and_another_scale_fails(harness: Path) -> None:
    def other_scale(inputs: Any, weights: Any, params: Any) -> torch.Tensor:
        return stored_scores(inputs, weights, {**params, "scale": params["scale"] * 1.05})

    assert set(statuses(stored_scores, "sdpa", harness)) == {"pass"}
    assert "fail" in statuses(other_scale, "sdpa", harness)
