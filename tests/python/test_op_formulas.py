"""The formulas of `harness list --ops` against torch: what every device reads is written once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

NUMBER = 0.3125
# Where torch has no function of that name, or another order of operands.
OTHERS: dict[str, Callable[..., torch.Tensor]] = {
    "add_scalar": lambda x: x + NUMBER,
    "softcap": lambda x: NUMBER * torch.tanh(x / NUMBER),
    "scaled_add": lambda x, residual: residual + NUMBER * x,
}


@pytest.fixture
def formulas(harness: Path) -> dict[str, tuple[list[str], str]]:
    """By op: its inputs' names and what it computes."""
    done = subprocess.run([harness, "list", "--ops"], capture_output=True, text=True, check=True)
    out = {}
    for line in done.stdout.splitlines():
        name, operands, *formula = [part.strip() for part in line.split("  ") if part.strip()]
        if formula:
            out[name] = (operands.split(" = ")[1].split(", "), formula[0])
    return out


def test_a_formula_is_what_torch_computes(formulas: dict[str, tuple[list[str], str]]) -> None:
    assert {"add", "mul", "div", "rsqrt", "minimum", *OTHERS} <= formulas.keys()
    special = torch.tensor([0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan], dtype=torch.float64)
    drawn = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values = torch.cat([special, drawn])
    names: dict[str, Any] = {"R": lambda x: x, "number": NUMBER, "sqrt": torch.sqrt}
    names |= {"tanh": torch.tanh, "where": torch.where}
    for name, (inputs, formula) in formulas.items():
        grid = [g.flatten() for g in torch.meshgrid([values] * len(inputs), indexing="ij")]
        found = eval(formula, names | dict(zip(inputs, grid, strict=True)))
        expected = OTHERS.get(name) or getattr(torch, name)
        torch.testing.assert_close(found, expected(*grid), equal_nan=True, msg=name)
