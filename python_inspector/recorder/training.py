"""Modules in train mode: what of them draws random numbers or changes state then."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.modules.batchnorm import _NormBase

from ..errors import RecordError
from .callables import CAPTURED


def refuse_training(module: torch.nn.Module, name: str) -> None:
    """RecordError where a part in train mode does what no kernel can be held to.

    Everything else is called in the mode that it is in.
    """
    found = list(dict.fromkeys(_dependent(module)))
    if found:
        raise RecordError(
            f"[check] {name} is in train mode, where {' and '.join(found[:3])}: no kernel can be "
            "held to that; call .eval() on it first"
        )


def in_training(module: torch.nn.Module) -> bool:
    return any(m.training for m in module.modules() if type(m) is not torch.nn.Module)


def _dependent(module: torch.nn.Module) -> Iterator[str]:
    for path, part in module.named_modules():
        if not part.training:
            continue
        own = path.partition(".")[2] if path.startswith(CAPTURED) else path
        kind = f"{type(part).__name__}{f' ({own})' if own else ''}"
        if isinstance(part, _NormBase) and part.track_running_stats:
            yield f"{kind} changes its running statistics"
        elif isinstance(part, torch.nn.RReLU) or any(_shares(part)):
            yield f"{kind} draws random numbers"
        elif type(part).__name__ == "_SpectralNorm":
            yield f"{kind} changes its vectors"


def _shares(part: torch.nn.Module) -> Iterator[bool]:
    """Of each share of dropout that a module has, under whatever name, whether it is above 0."""
    if isinstance(part, torch.nn.RNNBase) and part.num_layers == 1:
        return  # it drops between layers alone
    for name, value in vars(part).items():
        drops = "drop" in name or (name == "p" and "Dropout" in type(part).__name__)
        if drops and isinstance(value, float):
            yield value > 0
