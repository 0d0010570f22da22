"""The candidates of rounding.py against kernels whose rounding points are written down."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from . import float32_inside, judged, rounding
from .recordings import ROOT, folders
from .torch_functional import kernels

NAMES = {
    "rms_norm": "float32 inside",
    "rotary": "float32 inside",
    "glu_activation": "float32 inside, kept",
    "softcap": "x / cap kept, tanh kept",
    "sdpa": "scores kept, P kept",
    "glu_mlp": "gate and up kept, float32 inside, kept",
}


@pytest.mark.parametrize("block", NAMES)
def test_float32_inside_is_named(block: str) -> None:
    cases = judged.cases(ROOT / "fixtures" / "gemma2-a4" / "decode-bf16")[block]
    outputs = float32_inside.__dict__[block](cases[0])
    outputs = outputs if isinstance(outputs, dict) else {"out": outputs}
    shares = rounding.shares(cases[0], outputs)
    assert NAMES[block] in [name for name, share in shares if share == shares[0][1]], shares[:3]
    assert shares[0][1] < 0.005  # GELU's tail


def test_the_cubic_exponential_is_that_of_flash_attention() -> None:
    """torch's own, of a fresh recording with hundreds of keys; a true exponential is far off."""
    from .measured import FRESH

    (flash,) = [kernel for kernel in kernels() if kernel.name == "F.sdpa flash"]
    folder = next(path for path in folders("bf16", FRESH) if "llama-long" in str(path))
    case = judged.cases(folder)["sdpa"][0]
    shares = dict(rounding.shares(case, flash.outputs(case)))
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("the cubic is of torch's AVX-512 kernels")
    assert shares["scores kept, torch's cubic exp in 16 by blocks of 512"] < 0.01
    assert shares["scores kept, exp in 16, sum of the exact"] > 0.02


def test_the_exact_result_is_float64() -> None:
    case = judged.cases(ROOT / "fixtures" / "llama-a1" / "whole-f32")["rms_norm"][0]
    wanted = functional.rms_norm(
        case["x"].double(), (case["x"].shape[-1],), case["weight"].double(), case.params["eps"]
    )
    torch.testing.assert_close(rounding.exact(case)["out"], wanted, rtol=1e-14, atol=0)
