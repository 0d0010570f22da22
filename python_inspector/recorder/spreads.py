"""What simulated kernels show of outputs, computed for many of one layout at once.

A single output's statistics are a hundred operations on a few numbers: on an accelerator launches
and nothing else. So outputs wait until there are enough of them; what a recording says of each is
filled in then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..format.host_copy import is_host
from ..format.recording import Later
from ..trace.ill_conditioned import may_be_ill, of_the_rest
from ..trace.spread import Judged, judged, spreads_of, spreads_of_kinds

MOST = 1 << 10
"""Outputs that wait at most."""
ROOM = 1 << 20
"""Elements of samples whose statistics are made at once: what the caches of a CPU hold."""
ROOM_ON_DEVICE = 1 << 26
"""The same on an accelerator."""
WAITING = 4
"""Rooms of samples that wait at most."""
MANY = 16
"""Rooms of samples whose memory, once they are done, an accelerator's other processes need."""


@dataclass
class _Output:
    oracle: torch.Tensor
    valid: torch.Tensor | None
    samples: torch.Tensor
    """[1 + kinds * runs, *shape], the rounded model first."""
    into: list[Later]
    """One for each kind of samples."""
    set_aside: SetAside | None
    keep: Keep | None


SetAside = Callable[[torch.Tensor], None]
"""Is called with the elements that are in ill-conditioned rows, where there are some."""
Keep = Callable[[Judged], None]
"""Is called with what the samples of one output alone were measured against."""


class Spreads:
    """Outputs whose statistics are still to be made."""

    def __init__(self) -> None:
        self._waiting: dict[_Like, list[_Output]] = {}
        self._count = 0
        self._rooms = 0.0

    def of(
        self,
        oracle: torch.Tensor,
        axes: tuple[str, ...],
        valid: torch.Tensor | None,
        samples: torch.Tensor,
        kinds: int,
        set_aside: SetAside | None = None,
        keep: Keep | None = None,
    ) -> list[Later]:
        """The spread entry of an output that is stored whole, for each kind of its samples; empty
        until there are enough."""
        mask = None if valid is None else valid.expand(oracle.shape).clone()  # of the run
        output = _Output(oracle, mask, samples, [Later() for _ in range(kinds)], set_aside, keep)
        kind = (samples.dtype, oracle.device, len(samples), kinds, valid is None)
        self._waiting.setdefault((axes, oracle.shape, kind), []).append(output)
        self._count += 1
        self._rooms += samples.numel() / _room(oracle.device)
        return output.into

    def settle_many(self) -> None:
        """Fills in all that wait once there are enough of them."""
        if self._count >= MOST or self._rooms > WAITING:
            self.settle()

    def settle(self) -> None:
        """Fills in all that wait."""
        waiting, large = self._waiting, self._rooms > MANY
        devices = {outputs[0].oracle.device for outputs in waiting.values()}
        self._waiting, self._count, self._rooms = {}, 0, 0.0
        with torch._C.DisableTorchFunction():  # the recorder's mode need not see its arithmetic
            _fill_all(waiting)
        waiting.clear()
        for device in devices if large else ():
            give_back(device)


_Like = tuple[tuple[str, ...], torch.Size, tuple[Any, ...]]
"""Axes, shape, and what else outputs have in common whose statistics are made at once."""


def _fill_all(waiting: dict[_Like, list[_Output]]) -> None:
    for (axes, _, _), outputs in waiting.items():
        room = _room(outputs[0].oracle.device)
        step = max(1, room // max(1, outputs[0].samples.numel()))
        for start in range(0, len(outputs), step):
            _fill(axes, outputs[start : start + step])


def _fill(axes: tuple[str, ...], outputs: list[_Output]) -> None:
    first = outputs[0]
    kinds = len(first.into)
    if len(outputs) == 1:  # which may be too large for a copy
        against = judged(first.oracle, axes, first.valid, None, first.samples.dtype)
        _into(axes, first, spreads_of_kinds(against, first.samples, kinds=kinds))
        if first.keep is not None:
            first.keep(against)
        return
    oracles = torch.stack([output.oracle for output in outputs])
    samples = torch.stack([output.samples for output in outputs])
    masks = [output.valid for output in outputs if output.valid is not None]
    valid = torch.stack(masks) if masks else None
    entries = spreads_of(axes, oracles, samples, valid, kinds=kinds)
    for output, of_kinds in zip(outputs, entries, strict=True):
        _into(axes, output, of_kinds)


def _into(axes: tuple[str, ...], output: _Output, entries: list[dict[str, Any]]) -> None:
    """What decides of an output whose rows are partly ill conditioned is the rest of it."""
    if may_be_ill(entries):
        against = judged(output.oracle, axes, output.valid, None, output.samples.dtype)
        entries, rows = of_the_rest(against, output.samples, entries)
        if rows is not None and output.set_aside is not None:
            output.set_aside(rows)
    for later, entry in zip(output.into, entries, strict=True):
        later.fill(entry)


def give_back(device: torch.device) -> None:
    """Memory that tensors no longer use, for other processes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _room(device: torch.device) -> int:
    return ROOM if is_host(device) else ROOM_ON_DEVICE
