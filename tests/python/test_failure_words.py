"""What the text of a failure says: how many elements, how far, which bug; what it leaves out."""

from __future__ import annotations

import re

import pytest
import torch
from checked import normal, wrong

pytestmark = pytest.mark.usefixtures("harness")


def test_a_failure_counts_elements_and_names_the_largest_differences() -> None:
    x = normal(3, 8, 16)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = x.tanh()
        out[1, 2, 3] += 0.5
        out[2, 7, 15] = float("nan")
        return out

    words = str(wrong(kernel, torch.tanh, x))
    relative = 0.5 / abs(float(x[1, 2, 3].tanh()))
    assert "2 of 384 elements beyond the limit (0.52 %)" in words
    found = re.search(r"largest difference (\S+) at \((.*?)\), relative (\S+) at \((.*?)\)", words)
    assert found is not None
    assert found[1] == "0.5" and found[2] == found[4] == "1, 2, 3"
    assert float(found[3]) == pytest.approx(relative, rel=0.06)


def test_whole_numbers_are_counted_too() -> None:
    words = str(wrong(lambda x: x.argsort(-1) + 1, lambda x: x.argsort(-1), normal(4, 8)))
    assert "32 of 32 elements differ (100 %); largest difference 1 at " in words


def test_of_several_outputs_each_that_fails_is_counted() -> None:
    def like(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.tanh(), x.exp()

    words = str(wrong(lambda x: (x.tanh(), x.exp() * 2), like, normal(4, 8)))
    assert "out.1: 32 of 32 elements beyond the limit" in words
    assert "out.0: " not in words


def norm(x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_nan_everywhere_is_no_known_bug(dtype: torch.dtype) -> None:
    """Skipping the square root's sum is NaN for rows that are negative: so is anything else."""
    x = -normal(8, 64, dtype=dtype).abs()

    def like(x: torch.Tensor) -> torch.Tensor:
        return (x.abs() + 1).log()  # without abs: NaN

    verdict = wrong(lambda x: x * torch.nan, like, 10 * x - 2)
    assert verdict.known_bug is None
    named = wrong(lambda x: (x.abs() + 1).log() * 0 + x.abs().log(), like, 10 * x - 2)
    assert named.known_bug is not None and named.known_bug.startswith("add #0 is skipped")


def test_of_a_gross_error_no_roundings_are_told() -> None:
    x = normal(8, 64, dtype=torch.bfloat16)
    gross = wrong(lambda x: 2 * norm(x), norm, x)
    assert gross.diagnosis == ""
    near = wrong(lambda x: (norm(x.float()) * 1.0012).to(x.dtype), norm, x)
    assert "follows no rounding points" in near.diagnosis


def test_ratios_are_written_as_people_write_them() -> None:
    words = str(wrong(lambda x: x.tanh() * 1.0005, torch.tanh, normal(8, 64)))
    assert re.search(r"\(\d{3,}x the limit\)", words), words
    assert "e+0" not in words
