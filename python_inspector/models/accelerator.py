"""An accelerator's start, and a model's way there."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import torch

from ..format.host_copy import is_host, is_on_host_too

_COPIES = 4
"""Weights that are read from their file and copied at once."""


def move(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The model on the device; its weights stay where they were, too, so that they can be hashed
    without being fetched (most often mapped files, which take no memory of their own).

    RuntimeError where there is no such device, or too little memory on it.
    """
    if is_host(device):
        return model.to(device)
    torch.empty(0, device=device)  # the first thread that asks starts it
    _copy(list(model.parameters()), device)
    return model.to(device)


def _copy(parameters: Sequence[torch.nn.Parameter], device: torch.device) -> None:
    with ThreadPoolExecutor(_COPIES) as threads:
        moved = threads.map(lambda parameter: parameter.data.to(device, copy=True), parameters)
        for parameter, there in zip(parameters, moved, strict=True):
            here, parameter.data = parameter.data, there
            if is_host(here.device):
                is_on_host_too(parameter, here)


def give_back(device: torch.device) -> None:
    """Memory that tensors no longer use, for other processes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def starting(name: str) -> Iterator[None]:
    """Beside what is done inside, a CUDA device starts, with what a recording uses of it: more than
    a second that importing transformers has not to wait for. Of another device nothing."""
    thread = threading.Thread(target=_start, args=(name,))
    if name.startswith("cuda"):
        thread.start()
    try:
        yield
    finally:
        if thread.ident is not None:
            thread.join()


def _start(name: str) -> None:
    """Each kernel's first call loads it; what is wrong with the device is found when it is used."""
    with suppress(Exception), torch.no_grad():
        ids = torch.arange(256, device=torch.device(name))
        narrow = (ids.float().reshape(16, 16) / 256).bfloat16()
        bool((ids.diff() != 1).any())
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            x = narrow.to(dtype)
            _use(x, ids[:16])
        torch.empty(narrow.shape, dtype=narrow.dtype, pin_memory=True).copy_(narrow)
        torch.cuda.synchronize(name)


def _use(x: torch.Tensor, ids: torch.Tensor) -> None:
    torch.bmm((x @ x.mT)[None], x[None])
    torch.nn.functional.embedding(ids, x).cos()
    torch.nn.functional.gelu(x, approximate="tanh").tanh().softmax(-1)
    torch.cat([x.sort(-1).values, x.cumsum(0)]).amax(-1)
    torch.where(x > 0, x, 0.0).nonzero()
    torch.linalg.vector_norm(x.abs(), dtype=torch.float64)
    torch.zeros_like(x).index_add_(0, ids, x.square()).isnan().any()
