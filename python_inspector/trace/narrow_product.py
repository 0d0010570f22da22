"""Products that an accelerator makes of 16-bit operands as they are, on its tensor cores.

Not the rounded model's own: that is exact, in float64. But how far simulated kernels are from it,
and how large the terms of its sums are, need be known to three digits only, and float32 sums of
exact products give six.
"""

from __future__ import annotations

import torch

from ..format.host_copy import is_host
from .simulation import NARROW, product

_TO_FLOAT32 = getattr(torch.ops.aten.mm, "dtype", None) if torch.version.cuda else None


def is_narrow(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a @ b can be made so."""
    return a.dtype == b.dtype and a.dtype in NARROW and b.ndim == 2 and not is_host(a.device)


def narrow_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [..., rows, terms] @ b [terms, columns] of one 16-bit dtype, in float32."""
    if _TO_FLOAT32 is not None and not is_host(a.device):
        try:
            flat: torch.Tensor = _TO_FLOAT32(a.reshape(-1, a.shape[-1]), b, torch.float32)
            return flat.unflatten(0, a.shape[:-1])
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # a device or a build that has no such product
            pass
    return torch.matmul(a.float(), b.float())


def product_of_stack(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [samples, rows, terms] @ b, in float64: exact for the first sample. The others are as far
    from it as the product of their difference is, which has three digits at least: simulated
    kernels differ by a few roundings of 16 bits."""
    first = product(a[0], b)
    out = first.new_empty(len(a), *first.shape)
    out[0] = first
    if len(a) > 1:
        off = torch.where(a[1:] == a[0], 0.0, a[1:] - a[0])  # of infinities, too
        torch.add(first, narrow_product(off, b), out=out[1:])
    return out
