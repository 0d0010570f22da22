"""Operands and failures for the tests of check()."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from python_inspector import check
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
