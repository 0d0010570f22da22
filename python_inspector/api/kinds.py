"""What is hard about drawn values: each kind makes hard ones of normal numbers in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def _normal(x: Any, info: Any) -> Any:
    return x


def _outliers(x: Any, info: Any) -> Any:
    x[..., :: max(2, x.shape[-1] // 3)] *= 100
    return x


def _ties(x: Any, info: Any) -> Any:
    return (x * 4).round() / 4


def _borders(x: Any, info: Any) -> Any:
    for axis in range(x.ndim):
        for at in range(x.shape[axis]):
            if at % 16 in (0, 15):
                x.select(axis, at).mul_(3)
    return x


def _denormals(x: Any, info: Any) -> Any:
    x[..., 1::2] *= info.smallest_normal / 4
    return x


def _negative(x: Any, info: Any) -> Any:
    return -x.abs()


def _huge(x: Any, info: Any) -> Any:
    return x * (info.max / 128 if info.bits == 16 and info.max < 1e6 else _square_root(x, info))


def _square_root(x: Any, info: Any) -> float:
    return math.sqrt(info.max) / (64 * max(1, x.shape[-1]))


def _sparse(x: Any, info: Any) -> Any:
    flat = x.reshape(-1)
    kept = flat[::8].clone()
    flat.zero_()[::8] = kept
    return flat.reshape(x.shape)


def _small(x: Any, info: Any) -> Any:
    return x / 1024


def _equal(x: Any, info: Any) -> Any:
    return x[..., :1].expand(x.shape).clone()


def _zeros(x: Any, info: Any) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    rows[::2] = 0
    return rows.reshape(x.shape)


def _infinite(x: Any, info: Any) -> Any:
    flat = x.reshape(-1)
    flat[:: max(2, flat.numel() // 3)] *= math.inf
    return flat.reshape(x.shape)


KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "normal": _normal,
    "outliers": _outliers,
    "ties": _ties,
    "borders": _borders,
    "denormals": _denormals,
    "negative": _negative,
    "huge": _huge,
    "sparse": _sparse,
    "small": _small,
}
NAMED_KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": _equal,
    "zeros": _zeros,
    "inf": _infinite,
}
"""Those that many functions say nothing of, and that are drawn where they are asked for."""
