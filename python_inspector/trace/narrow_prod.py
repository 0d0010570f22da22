"""torch's `prod` of 16-bit numbers on a CPU, which rounds to 16 bits after every factor.

Of many factors that is more than one rounding, and a partial product that is small has fewer bits,
or none, though the whole one is of ordinary size. Kernels that keep it in float32 are better, and
right; so are those that multiply in another order. Where most bits are lost, correct kernels have
anything: such a row is ill conditioned. Where a partial product is too large, they have infinity or
what the others have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..format.host_copy import is_host
from .arithmetic import ROUNDING
from .simulation import NARROW, Noise

_STEP = 12**-0.5
"""The same where numbers have one step: a part of that."""
_LOST = 0.1
"""Of the result, if that is no smaller part of the usual one."""


def rounds_factors(name: str, into: torch.dtype, device: torch.device) -> bool:
    return name == "prod" and into in NARROW and is_host(device)


def of_factors(args: Sequence[Any], exact: torch.Tensor, into: torch.dtype) -> Noise:
    """What is left of the roundings of partial products in the whole one."""
    x = args[0].flatten() if len(args) < 2 or not args[0].ndim else args[0].movedim(args[1], -1)
    format, sizes = torch.finfo(into), exact.abs()
    partial = x.abs().cumprod(-1)[..., :-1]  # the last one is what is stored
    step = _STEP * format.smallest_normal * format.eps / partial
    off = (step.square() + (ROUNDING * format.eps / 2) ** 2).sum(-1).sqrt()
    off = off.nan_to_num(1.0).clamp_max(1.0).reshape(exact.shape)
    lost = (off > _LOST) & (sizes > _LOST * sizes.median())
    return Noise(torch.where(lost, torch.inf, off * sizes))
