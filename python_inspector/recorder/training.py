"""Modules in train mode: what of them draws random numbers or changes state then."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from ..errors import RecordError
from .callables import CAPTURED


class StateReturned(torch.nn.Module):
    """A module called from the state that it has, which stays; it returns its result and, by name,
    what the call made of the buffers `names`."""

    def __init__(self, module: torch.nn.Module, names: Collection[str]) -> None:
        super().__init__()
        self.module = module
        self.names = frozenset(names)
        self.training = module.training

    def forward(self, *args: Any) -> Any:
        buffers = self.module.named_buffers()
        state = {name: t.clone() for name, t in buffers if name in self.names}
        return torch.func.functional_call(self.module, state, args), state


def with_state(module: torch.nn.Module, names: Collection[str]) -> StateReturned:
    """Called as the module's class is, in verdicts."""
    return type(type(module).__name__, (StateReturned,), {})(module, names)


def changed_buffers(module: torch.nn.Module, args: tuple[Any, ...]) -> list[str]:
    """Names of the buffers that a call changes; they are put back."""
    before = {name: t.clone() for name, t in module.named_buffers()}
    if not before:
        return []
    with torch.no_grad():
        module(*copy.deepcopy(args))
        after = dict(module.named_buffers())
        changed = [name for name, t in before.items() if not torch.equal(t, after[name])]
        for name in changed:
            after[name].copy_(before[name])
    return changed


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
    returned = isinstance(module, StateReturned)
    for path, part in module.named_modules():
        if not part.training:
            continue
        own = path.partition(".")[2] if returned or path.startswith(CAPTURED) else path
        kind = f"{type(part).__name__}{f' ({own})' if own else ''}"
        if isinstance(part, _NormBase) and part.track_running_stats and not returned:
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
