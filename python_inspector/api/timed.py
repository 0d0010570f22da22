"""Times calls of a function, each on a copy of the arguments with values of its own, after the
caches were emptied: the same code for a sealed function, in its process, and for `like`.

The clock's functions are torch's own in C, which Python code cannot replace, or time.perf_counter;
they are held since before the function was imported.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..arrays import Convert, converted
from . import travel

CACHE = 1 << 26
"""Bytes of a cache whose size is not known."""


class Clock:
    """Time stamps between calls on a device."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._now = time.perf_counter
        self._stamps: list[Any] = []
        self._record, self._elapsed = torch.Event.record, torch.Event.elapsed_time
        self._finish = getattr(torch._C, "_accelerator_synchronizeDevice", None)
        self.stamp = self._read if self._device.type == "cpu" else self._next
        self._at = 0

    def begin(self, stamps: int) -> None:
        if self._device.type == "cpu":
            self._stamps = []
        else:
            self._stamps = [torch.Event(self._device, enable_timing=True) for _ in range(stamps)]
            self._at = 0

    def _read(self) -> None:
        self._stamps.append(self._now())

    def _next(self) -> None:
        self._record(self._stamps[self._at])
        self._at += 1

    def synchronise(self) -> None:
        """Every stream of the device has ended."""
        if self._device.type != "cpu" and self._finish is not None:
            self._finish(self._device.index or 0)

    def seconds(self) -> list[float]:
        """Between one stamp and the next."""
        pairs = zip(self._stamps, self._stamps[1:], strict=False)
        if self._device.type == "cpu":
            return [after - before for before, after in pairs]
        return [self._elapsed(before, after) / 1e3 for before, after in pairs]


class Runner:
    """Calls a function in batches."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Any,
        clock: Clock,
        cache: int,
        convert: Convert | None = None,
    ) -> None:
        self._function, self._clock, self._convert = function, clock, convert
        self._base = travel.Packed(arguments, "the arguments")
        self._structure = json.loads(self._base.text)
        self._copies: list[list[torch.UntypedStorage]] = []
        self._given: list[Any] = []
        self._sample = -1
        device = next((it.device for it in self._base.storages), torch.device("cpu"))
        self._cache = torch.empty(cache, dtype=torch.uint8, device=device)
        self._random = random.SystemRandom()
        self.result: Any = None

    def ready(self, calls: int, sample: int = -1, given: Any = None) -> None:
        """Fresh values for so many calls; those of the `sample` are `given`, its result is kept."""
        while len(self._copies) < calls:
            self._copies.append([it.clone() for it in self._base.storages])
        del self._copies[calls:]
        for storages in self._copies:
            self._fill(storages, self._random.uniform(0.5, 1))
        self._sample, self.result = sample, None
        if given is not None:
            its = travel.Packed(given, "the arguments").storages
            for mine, its_own in zip(self._copies[sample], its, strict=True):
                bytes_of(mine).copy_(bytes_of(its_own))
        self._given = [self._arguments(storages) for storages in self._copies]
        self._clock.begin(calls + 1)
        self._cache.fill_(self._random.randrange(256))
        self._clock.synchronise()

    def go(self) -> None:
        """Calls, and waits for the device."""
        function, stamp, sample = self._function, self._clock.stamp, self._sample
        stamp()
        for i, (args, kwargs) in enumerate(self._given):
            result = function(*args, **kwargs)
            stamp()
            if i == sample:
                self.result = result
        self._clock.synchronise()

    def seconds(self) -> list[float]:
        return self._clock.seconds()

    @property
    def sampled(self) -> Any:
        """The arguments of the sampled call, as they are now."""
        return self._restored(self._copies[self._sample])

    def _arguments(self, storages: list[torch.UntypedStorage]) -> Any:
        made = self._restored(storages)
        return made if self._convert is None else converted(made, self._convert)

    def _restored(self, storages: list[torch.UntypedStorage]) -> Any:
        return travel.restored(self._structure, lambda at, _: storages[at])

    def _fill(self, storages: list[torch.UntypedStorage], factor: float) -> None:
        for at, (base, mine) in enumerate(zip(self._base.storages, storages, strict=True)):
            scale(bytes_of(base), bytes_of(mine), self._base.floats.get(at), factor)


def scaled(arguments: Any, factor: float) -> Any:
    """Other values in storages of their own: signs, zeros and what depends on sizes stay."""
    packed = travel.Packed(arguments, "the arguments")
    storages = [it.clone() for it in packed.storages]
    for at, made in enumerate(storages):
        scale(packed.bytes_of(at), bytes_of(made), packed.floats.get(at), factor)
    return travel.restored(json.loads(packed.text), lambda at, _: storages[at])


def scale(base: torch.Tensor, to: torch.Tensor, dtype: torch.dtype | None, factor: float) -> None:
    with torch.no_grad():
        if dtype is None or dtype.itemsize < 2 or len(base) % dtype.itemsize:
            to.copy_(base)
        else:
            torch.mul(base.view(dtype), factor, out=to.view(dtype))


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def cache_bytes(device: torch.device) -> int:
    """Of the largest cache in front of a device's memory."""
    if device.type == "cpu":
        sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
        found = [int(it.read_text().strip().rstrip("K")) << 10 for it in sizes]
        return max(found, default=CACHE)
    properties = torch.get_device_module(device).get_device_properties(device)
    return int(getattr(properties, "L2_cache_size", 0) or CACHE)


class Server:
    """Times the function of this process, as the judge asks."""

    def __init__(self, folder: Path, answers: int, device: str) -> None:
        self._folder, self._answers = folder, answers
        self._write, self._listen, self._text = os.write, sys.stdin.readline, json.dumps
        self._load, self._leave = travel.load, travel.leave
        self._runner, self._clock = Runner, Clock(device)

    def serve(self, function: Callable[..., Any], convert: Convert | None, *, grad: bool) -> None:
        """Until the judge asks no more."""
        given, base = (self._load(self._folder / name) for name in ("timed", "in-0"))
        if not (line := self.question()):
            return
        with torch.no_grad():
            runner = self._runner(function, base, self._clock, line["cache"], convert)
        self.answer("made")
        while line := self.question():
            if line["do"] == "ready":
                with torch.no_grad():
                    sample = line["sample"]
                    runner.ready(line["calls"], sample, None if sample < 0 else given)
                self.answer("ready")
            elif line["do"] == "go":
                with torch.set_grad_enabled(grad):
                    runner.go()
                self.answer("ended")
                if line["out"]:
                    self._leave(runner.result, runner.sampled, self._folder / line["out"])
            elif line["do"] == "seconds":
                self.answer(runner.seconds())
            else:
                break

    def question(self) -> Any:
        line = self._listen()
        return json.loads(line) if line else None

    def answer(self, value: Any) -> None:
        self._write(self._answers, self._text(value).encode() + b"\n")
