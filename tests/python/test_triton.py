"""check() judges kernels in Triton: on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from checked import wrong

from python_inspector import check

triton_kernels = pytest.importorskip("triton_kernels", reason="the package triton is missing")

pytestmark = pytest.mark.usefixtures("harness")
CASES = triton_kernels.CASES
DTYPES = [torch.float32, torch.float16]
if triton_kernels.DEVICE != "cpu":
    DTYPES.append(torch.bfloat16)  # the interpreter of Triton 3.9 truncates casts to it


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_right_kernel_passes(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    assert check(case.kernel, like=case.like, inputs=case.inputs(dtype)).passed


FAULTS = [(name, fault) for name, case in CASES.items() for fault in case.wrong]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_wrong_kernel_fails_with_a_verdict(name: str, fault: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    verdict = wrong(lambda *args: case.kernel(*args, wrong=fault), case.like, case.inputs(dtype))
    assert verdict.status == "fail"
    assert "allowed" in verdict.reason or "differ" in verdict.reason
