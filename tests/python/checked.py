"""Operands and failures for the tests of check()."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from python_inspector import Sealed, check
from python_inspector.api.verdict import Verdict, WrongError

torch.set_num_threads(1)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def wrong(function: Any, like: Any, inputs: Any, **options: Any) -> Verdict:
    with pytest.raises(WrongError) as raised:
        check(function, like=like, inputs=inputs, **options)
    assert str(raised.value) == str(raised.value.verdict)
    return raised.value.verdict


def weighted_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def sealed_verdict(kernels: Path, name: str, inputs: Any = None, **options: Any) -> Verdict:
    """On a kernel of that file, which is given what weighted_norm is."""
    inputs = (normal(8, 32), normal(32, seed=1)) if inputs is None else inputs
    options = {"sealed": Sealed(timeout=40), "explain": False, **options}
    try:
        return check(f"{kernels}:{name}", weighted_norm, inputs, **options)
    except WrongError as error:
        return error.verdict
