"""A call on a stream of its own, as engines make them: what runs on another one comes too early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_SIDE, _PRODUCTS = 4096, 20
"""Work that keeps the stream busy until all of the call is queued: about 50 ms."""


def device_with_streams(tensors: list[torch.Tensor]) -> torch.device | None:
    """The first accelerator on which tensors are."""
    found = [t.device for t in tensors if t.device.type not in ("cpu", "meta")]
    return next((it for it in found if hasattr(torch.get_device_module(it), "Stream")), None)


def on_another_stream(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """The function, called while the stream is busy and its operands' values are not there yet."""

    def called(*args: Any, **kwargs: Any) -> Any:
        module = torch.get_device_module(device)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        given = [t.detach() for t in given if t.device == device and _can_be_filled(t)]
        values = [t.clone() for t in given]
        for t in given:
            t.fill_(float("nan")) if t.is_floating_point() else t.zero_()
        module.synchronize(device)
        with module.stream(module.Stream(device)):
            work = torch.ones(_SIDE, _SIDE, device=device)
            for _ in range(_PRODUCTS):
                work = work @ work
            for t, value in zip(given, values, strict=True):
                t.copy_(value)
            returned = function(*args, **kwargs)
        module.synchronize(device)
        return returned

    return called


def _can_be_filled(t: torch.Tensor) -> bool:
    """Whether each element has memory of its own."""
    return t.layout is torch.strided and 0 not in t.stride()
