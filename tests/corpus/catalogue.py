"""All kernels of the corpus, or those that a device runs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from . import (
    attention,
    attention_forms,
    caches,
    choices,
    compiled,
    elementwise,
    hidden,
    images,
    losses,
    normalizations,
    norms,
    positions,
    products,
    quantised,
    reductions,
    tricks,
)
from .rows import Kernel

TABLES = (
    norms, normalizations, attention, attention_forms, caches, products, quantised, elementwise,
    reductions, choices, images, positions, losses, tricks, hidden,
)  # fmt: skip


def kernels(device: str = "cpu") -> dict[str, list[Kernel]]:
    """By problem."""
    found: dict[str, list[Kernel]] = {}
    for row in _rows(device):
        found.setdefault(row.problem.name, []).append(row)
    return found


def _rows(device: str) -> Iterator[Kernel]:
    for table in TABLES:
        yield from table.rows()
    if device == "cpu":
        yield from compiled.rows()
    if find_spec("triton"):
        from . import in_triton  # after Triton was asked for its interpreter, or not

        yield from in_triton.rows()
