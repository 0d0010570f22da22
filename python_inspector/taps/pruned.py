"""Pruned layers: torch.nn.utils.prune makes a weight before each call, of values and a mask."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.prune import BasePruningMethod


def with_masks(module: torch.nn.Module) -> Callable[..., Any]:
    """A module's forward, as it is called: its own weights are masked first, so that what runs it
    again computes them of the values and the mask that are recorded."""
    methods = [it for it in module._forward_pre_hooks.values() if isinstance(it, BasePruningMethod)]
    if not methods:
        return module.forward

    @functools.wraps(module.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        for method in methods:
            method(module, args)
        return module.forward(*args, **kwargs)

    return forward
