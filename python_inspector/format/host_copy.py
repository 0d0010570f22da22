"""Tensors of an accelerator on their way to the host, beside the accelerator's own work."""

from __future__ import annotations

import functools
from typing import Any

import torch


class HostCopy:
    """A tensor as it is now, contiguous, while the run goes on: copied where it lies at once, and
    to the host by the thread that asks for it. `fixed`: nobody writes to it meanwhile."""

    def __init__(self, t: torch.Tensor, *, fixed: bool = False) -> None:
        own = t.detach()
        contiguous = torch.contiguous_format
        self._own = own.contiguous() if fixed else own.clone(memory_format=contiguous)
        self._ready: Any = None
        if t.is_cuda:
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(t.device))

    def take(self) -> torch.Tensor:
        """The copy on the host; may be asked for once.

        An accelerator that copies to ordinary memory does so in its run's stream, at a fraction of
        what its bus takes, and lets nothing else run. So it goes to pinned memory, in a stream of
        its own.
        """
        own, self._own = self._own, torch.empty(0)
        if self._ready is None:
            return own
        host = torch.empty(own.shape, dtype=own.dtype, pin_memory=True)
        stream = _stream(own.device)
        stream.wait_event(self._ready)
        with torch.cuda.stream(stream):
            host.copy_(own, non_blocking=True)
            done = torch.cuda.Event(blocking=True)  # the waiting thread leaves its core to others
            done.record(stream)
        done.synchronize()
        return host


@functools.cache
def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)
