"""LitGPT: its RMSNorm and apply_rope."""

from __future__ import annotations

import torch
from litgpt.model import RMSNorm, apply_rope

from .kernel import Case, Kernel, Result, require
from .wrong_operands import table


def rms_norm(case: Case) -> Result:
    offset = bool(case.params["weight_offset"])
    norm = RMSNorm(case["x"].shape[-1], eps=case.params["eps"], add_unit_offset=offset)
    norm.weight = torch.nn.Parameter(case["weight"])
    with torch.no_grad():
        return norm(case["x"])


def rotary(case: Case) -> Result:
    return {
        name: apply_rope(case[name], case["cos"], case["sin"]).to(case.dtype) for name in ("q", "k")
    }


def rotary_own_table(case: Case) -> Result:
    """LitGPT keeps its table in float32."""
    require(case.angles is not None, "no positions with this table")
    cos, sin = table(case)
    return {name: apply_rope(case[name], cos, sin).to(case.dtype) for name in ("q", "k")}


def kernels() -> list[Kernel]:
    runs = [
        ("rms_norm", "RMSNorm", rms_norm), ("rotary", "apply_rope", rotary),
        ("rotary", "apply_rope, own table", rotary_own_table),
    ]  # fmt: skip
    return [
        Kernel("litgpt", block, name, run, of_inputs="own table" not in name)
        for block, name, run in runs
    ]
