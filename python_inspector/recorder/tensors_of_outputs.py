"""What a function under check() returned, as tensors."""

from __future__ import annotations

import torch

from ..format.operands import Output
from ..format.recording import TORCH_DTYPES


def as_tensor(output: Output) -> torch.Tensor:
    """Where it is; not to be written to."""
    if output.tensor is not None:
        return output.tensor
    data = bytearray(output.data)
    dtype = TORCH_DTYPES[output.dtype]
    return (
        torch.frombuffer(data, dtype=dtype).reshape(output.shape)
        if data
        else (torch.empty(output.shape, dtype=dtype))
    )
