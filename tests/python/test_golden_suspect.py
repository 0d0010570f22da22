"""A faulty transformers: its recording says so, and acquits no kernel with the same fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import command
from numpy_kernels import rms_norm
from recorded import recorded
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import python_inspector


def variance_in_bf16(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    variance = x.to(torch.bfloat16).pow(2).mean(-1, keepdim=True)
    return weight * (x * torch.rsqrt(variance.float() + eps))


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A float32 recording of LLaMA whose norms take their variance from bf16."""

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        return variance_in_bf16(hidden_states, self.weight, self.variance_epsilon)

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)
    recorded(tmp_path / "faulty", "llama", "whole", "f32")
    return tmp_path / "faulty"


def test_a_kernel_with_the_recorded_runs_fault_fails(faulty: Path, harness: Path) -> None:
    def same_fault(inputs: Any, weights: Any, params: Any) -> Any:
        return variance_in_bf16(inputs["x"], weights["weight"], params["eps"])

    def judged(kernel: Any, **options: Any) -> Any:
        (verdict,) = python_inspector.verify(
            kernel, faulty, r"^model\.norm#0$", harness=harness, **options
        )
        return verdict

    for verdict in (judged(same_fault), judged(rms_norm, arrays="numpy")):
        assert verdict.golden_suspect.startswith("golden suspect: ")
        assert "stores bf16" in verdict.golden_suspect
        assert verdict.golden_suspect in str(verdict)
    assert judged(same_fault).status == "fail"
    assert judged(rms_norm, arrays="numpy").passed


def test_the_summary_says_what_is_not_believed(faulty: Path, harness: Path) -> None:
    done = command("--device", "cpu", "--block", "rms_norm", "--fixture", str(faulty))
    assert "recorded references that are not believed" in done.stdout
    assert "golden suspect" in done.stdout
