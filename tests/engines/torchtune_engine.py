"""torchtune: its RMSNorm."""

from __future__ import annotations

import torch
from torchtune.modules import RMSNorm

from .kernel import Case, Kernel, Result, require


def rms_norm(case: Case) -> Result:
    require(not case.params["weight_offset"], "its Gemma norm is another class")
    norm = RMSNorm(case["x"].shape[-1], eps=case.params["eps"])
    norm.scale = torch.nn.Parameter(case["weight"])
    with torch.no_grad():
        return norm(case["x"])


def kernels() -> list[Kernel]:
    return [Kernel("torchtune", "rms_norm", "RMSNorm", rms_norm)]
