"""Blocks of ggml (ggml/src/ggml-common.h): a row of a weight is so many blocks of bytes, each with
its codes and scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .bits import fields


def _half(stored: torch.Tensor) -> torch.Tensor:
    """[blocks, 2] bytes of an f16, as [blocks, 1, 1] in float32."""
    return stored.contiguous().view(torch.float16).float().unsqueeze(-1)


def _groups(values: torch.Tensor, count: int) -> torch.Tensor:
    return values.reshape(len(values), count, -1)


def _nibbles(qs: torch.Tensor) -> torch.Tensor:
    return _groups(fields(qs, 4, 16), 1)


def _high_bits(qh: torch.Tensor) -> torch.Tensor:
    """Bit i of 32 is of code i."""
    return _groups((qh.int().unsqueeze(-1) >> torch.arange(8, device=qh.device)) & 1, 1) << 4


def _q4_0(d: Any, qs: Any) -> Any:
    return _half(d) * (_nibbles(qs) - 8)


def _q4_1(d: Any, m: Any, qs: Any) -> Any:
    return _half(d) * _nibbles(qs) + _half(m)


def _q5_0(d: Any, qh: Any, qs: Any) -> Any:
    return _half(d) * (_nibbles(qs) + _high_bits(qh) - 16)


def _q5_1(d: Any, m: Any, qh: Any, qs: Any) -> Any:
    return _half(d) * (_nibbles(qs) + _high_bits(qh)) + _half(m)


def _q8_0(d: Any, qs: Any) -> Any:
    return _half(d) * _groups(qs.contiguous().view(torch.int8), 1)


def _q2_k(scales: Any, qs: Any, d: Any, dmin: Any) -> Any:
    codes = _groups(fields(qs, 2, 32), 16)
    least = _half(dmin) * (scales >> 4).unsqueeze(-1)
    return _half(d) * (scales & 15).unsqueeze(-1) * codes - least


def _q3_k(high: Any, qs: Any, scales: Any, d: Any) -> Any:
    """A high bit that is not set takes 4 off."""
    codes = fields(qs, 2, 32) - 4 * (1 - fields(high, 1, 32))
    of_groups = fields(scales[:, :8], 4, 8) | (fields(scales[:, 8:], 2, 4) << 4)
    return _half(d) * (of_groups - 32).unsqueeze(-1) * _groups(codes, 16)


def _scales_and_mins(packed: Any) -> tuple[Any, Any]:
    """6 bits each of eight groups: the upper two of the last four are with the first four."""
    first, second, both = packed.int().unflatten(-1, (3, 4)).unbind(1)
    scales = torch.cat([first & 63, (both & 15) | ((first >> 6) << 4)], -1)
    mins = torch.cat([second & 63, (both >> 4) | ((second >> 6) << 4)], -1)
    return scales.unsqueeze(-1), mins.unsqueeze(-1)


def _q4_k(d: Any, dmin: Any, packed: Any, qs: Any) -> Any:
    scales, mins = _scales_and_mins(packed)
    return _half(d) * scales * _groups(fields(qs, 4, 32), 8) - _half(dmin) * mins


def _q5_k(d: Any, dmin: Any, packed: Any, qh: Any, qs: Any) -> Any:
    scales, mins = _scales_and_mins(packed)
    codes = fields(qs, 4, 32) | (fields(qh, 1, 32) << 4)
    return _half(d) * scales * _groups(codes, 8) - _half(dmin) * mins


def _q6_k(ql: Any, qh: Any, scales: Any, d: Any) -> Any:
    codes = (fields(ql, 4, 64) | (fields(qh, 2, 32) << 4)) - 32
    return _half(d) * scales.contiguous().view(torch.int8).unsqueeze(-1) * _groups(codes, 16)


BLOCKS: dict[str, tuple[Sequence[int], Callable[..., Any]]] = {
    "q4_0": ((2, 16), _q4_0),
    "q4_1": ((2, 2, 16), _q4_1),
    "q5_0": ((2, 4, 16), _q5_0),
    "q5_1": ((2, 2, 4, 16), _q5_1),
    "q8_0": ((2, 32), _q8_0),
    "q2_k": ((16, 64, 2, 2), _q2_k),
    "q3_k": ((32, 64, 12, 2), _q3_k),
    "q4_k": ((2, 2, 12, 128), _q4_k),
    "q5_k": ((2, 2, 12, 32, 128), _q5_k),
    "q6_k": ((128, 64, 16, 2), _q6_k),
}
"""The bytes of a block's parts, and the weights that these mean, in groups."""
