"""What the hardware reaches in this run, the rates of a copy and of a matrix product, and what a
call of torch code cannot do without."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .timed import Clock, cache_bytes, scaled
from .travel import Packed

BEYOND = 1.2
"""A copy reads and writes; reading alone is a little faster."""
LEAST = 5e-3
"""Seconds of what is measured."""
LEAST_COPY = 1 << 28
"""Bytes that take an accelerator longer than the start of a copy."""
WIDEST = 1 << 13


def device_name(device: torch.device | str) -> str:
    """What it is called where it is bought; of a host its architecture."""
    where = torch.device(device)
    return torch.cuda.get_device_name(where) if where.type == "cuda" else platform.machine()


@dataclass(frozen=True)
class Limits:
    """Bytes and operations of a call, and how many of them the device does in a second; 0 where
    that is not known."""

    bytes: float = 0
    flops: float = 0
    bytes_per_second: float = 0
    flops_per_second: float = 0

    @classmethod
    def of(cls, like: Callable[..., Any], arguments: Any) -> Limits:
        """Of `like` on these arguments."""
        packed = Packed(arguments, "the arguments")
        if not packed.storages:
            return cls()
        device = packed.storages[0].device
        needed, flops = read_bytes(like, arguments), counted_flops(like, arguments)
        dtype = next(iter(packed.floats.values()), None)
        return cls(
            needed, flops,
            _rate_of_copies(device) if needed else 0,
            _rate_of_products(device, dtype) if flops and dtype else 0,
        )  # fmt: skip

    def exceeded(self, seconds: float) -> str:
        """Which of them a call in that time does; empty where it is none."""
        seconds = max(seconds, 1e-12)
        both = (
            (self.bytes, self.bytes_per_second, "bytes", "a copy"),
            (self.flops, self.flops_per_second, "operations of `like`", "a matrix product"),
        )
        for amount, most, what, measure in both:
            if most and amount > BEYOND * most * seconds:
                return (
                    f"{amount:.3g} {what} in a call are {amount / seconds:.3g} in a second, "
                    f"{measure} reaches {most:.3g}"
                )
        return ""


def read_bytes(like: Callable[..., Any], arguments: Any) -> float:
    """At least so many are read: of the inputs' elements that a gradient depends on."""
    args, kwargs = scaled(arguments, 1.0)
    leaves = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    leaves = [t.detach().requires_grad_() for t in leaves if t.is_floating_point()]
    by_place = iter(leaves)

    def tracked(value: Any) -> Any:
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return next(by_place) if floats else value

    try:
        with torch.enable_grad():
            given = [tracked(it) for it in args]
            made = like(*given, **{name: tracked(it) for name, it in kwargs.items()})
            outputs = made if isinstance(made, (tuple, list)) else (made,)
            sums = [
                (t * torch.rand_like(t)).sum()
                for t in outputs
                if isinstance(t, torch.Tensor) and t.requires_grad and t.is_floating_point()
            ]
            found = torch.autograd.grad(sums, leaves, allow_unused=True) if sums else ()
    except Exception:  # a function without gradients: nothing is known of it
        return 0
    return sum(t.element_size() * float((t != 0).sum()) for t in found if t is not None)


def counted_flops(like: Callable[..., Any], arguments: Any) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    args, kwargs = scaled(arguments, 1.0)
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            like(*args, **kwargs)
    except Exception:
        return 0
    return float(counter.get_total_flops())


def _rate_of_copies(device: torch.device) -> float:
    """Bytes read and written in a second, of tensors that no cache holds."""
    size = 2 * cache_bytes(device)
    if device.type != "cpu":
        size = max(size, LEAST_COPY)
    one, other = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * size / _fastest(device, lambda: one.copy_(other))


def _rate_of_products(device: torch.device, dtype: torch.dtype) -> float:
    """Operations in a second; of float32 with what the device has for it in 32 bits or TF32."""
    before, width, found = torch.get_float32_matmul_precision(), 512, 0.0
    torch.set_float32_matmul_precision("high")
    try:
        while width <= WIDEST:
            one = torch.ones(width, width, dtype=dtype, device=device)
            seconds = _fastest(device, lambda one=one: one @ one)  # type: ignore[misc]
            found = max(found, 2 * width**3 / seconds)
            if seconds > LEAST:
                break
            width *= 2
    except RuntimeError:  # no such product in this dtype
        return 0
    finally:
        torch.set_float32_matmul_precision(before)
    return found


def _fastest(device: torch.device, call: Callable[[], Any]) -> float:
    clock, found = Clock(str(device)), float("inf")
    for _ in range(4):
        clock.begin(2)
        clock.stamp()
        call()
        clock.stamp()
        clock.synchronise()
        found = min(found, clock.seconds()[0])
    return max(found, 1e-9)
