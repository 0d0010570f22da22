"""Tensors of an accelerator on their way to the host, while the accelerator computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

SMALL = 1 << 20
"""Bytes up to which tensors are copied to the host at once, rather than during the run."""

STAGED = 16 << 20
"""Bytes that a thread copies to the host at a time."""


def near(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The same on the host, as long as they are small together: in one copy, because the host waits
    until the accelerator has come to it, and looks at each of them several times. Otherwise, and on
    the host, they themselves."""
    given = [t for t in tensors if t is not None]
    size = sum(t.numel() * t.element_size() for t in given)
    if not given or size > SMALL or any(is_host(t.device) for t in given):
        return list(tensors)
    ordered = sorted(given, key=lambda t: -t.element_size())  # each is aligned to its item size
    packed = torch.cat([bytes_of(t) for t in ordered]).cpu()
    found: dict[int, torch.Tensor] = {}
    begin = 0
    for t in ordered:
        end = begin + t.numel() * t.element_size()
        found[id(t)] = packed[begin:end].view(t.dtype).reshape(t.shape)
        begin = end
    return [None if t is None else found[id(t)] for t in tensors]


def bytes_of(t: torch.Tensor) -> torch.Tensor:
    """The tensor's elements as bytes, one behind the other. reshape() alone keeps the stride of a
    tensor whose elements are along one axis, and one element, or none, is contiguous with any."""
    flat = t.detach().reshape(-1).contiguous()
    return (flat.as_strided(flat.shape, (1,)) if flat.numel() < 2 else flat).view(torch.uint8)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape have the same bytes. Compared eight at a time: of each that
    differs or not an accelerator makes a byte."""
    x, y = bytes_of(a), bytes_of(b)
    if len(x) % 8 == 0 and x.data_ptr() % 8 == 0 and y.data_ptr() % 8 == 0:
        x, y = x.view(torch.int64), y.view(torch.int64)
    return torch.equal(x, y)


def is_host(device: torch.device) -> bool:
    """Whether a tensor's values are there when it is; an accelerator's have to be waited for."""
    return device.type == "cpu"


class HostCopy:
    """A tensor as it is now, contiguous, while the run continues: copied on its device at once, and
    to the host by the thread that asks for it. `fixed`: it is not written to meanwhile."""

    def __init__(self, t: torch.Tensor, *, fixed: bool = False) -> None:
        own = t.detach()
        contiguous = torch.contiguous_format
        self._own = own.contiguous() if fixed else own.clone(memory_format=contiguous)
        self._ready: Any = None
        if own.is_cuda:
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(t.device))

    def take(self) -> torch.Tensor:
        """The copy on the host; may be asked for once.

        An accelerator that copies to ordinary memory does so in its run's stream, at a fraction of
        what its bus takes, and lets nothing else run. So it goes through pinned memory, in a stream
        of its own. That memory is small and is kept: no other call of CUDA runs while it is made.
        """
        own, self._own = self._own, torch.empty(0)
        if self._ready is None:
            return own
        host = torch.empty(own.shape, dtype=own.dtype)
        stream = _stream(own.device)
        stream.wait_event(self._ready)
        done = torch.cuda.Event(blocking=True)  # the waiting thread leaves its core to others
        with torch.cuda.stream(stream), _pinned.one() as buffer:

            def arrived() -> None:
                done.record(stream)
                done.synchronize()

            copy_through(buffer, own, host, arrived)
        return host


def copy_through(
    buffer: torch.Tensor, source: torch.Tensor, to: torch.Tensor, arrived: Callable[[], None]
) -> None:
    """Copies a contiguous tensor to another, as many bytes at a time as the buffer has; `arrived`
    waits until they are there."""
    parts = [t.reshape(-1).view(torch.uint8).split(len(buffer)) for t in (source, to)]
    for part, place in zip(*parts, strict=True):
        staged = buffer[: len(part)]
        staged.copy_(part, non_blocking=True)
        arrived()
        place.copy_(staged)


class _Pinned:
    """Buffers of pinned memory, as many as there are threads that copy at once."""

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []

    @contextmanager
    def one(self) -> Iterator[torch.Tensor]:
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = torch.empty(STAGED, dtype=torch.uint8, pin_memory=True)
        try:
            yield buffer
        finally:
            self._free.append(buffer)


_pinned = _Pinned()


@functools.cache
def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)
